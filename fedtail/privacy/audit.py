"""The audit of a run: what its server could learn, measured, with each protection and without.

The first round is replayed with every client, exactly as the run's seed made it: early updates tell
most. Of the same updates the server is shown what it would see under each protection. What the run
left behind (the model, features that the server made) is examined as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedtail.callbacks import Checkpoint
from fedtail.engines import Embedded
from fedtail.engines.runtime import Runtime, numerics
from fedtail.errors import FedtailError
from fedtail.folder import RunFolder
from fedtail.forms import HELD, ROWS
from fedtail.models.split_model import SplitModel
from fedtail.privacy.attacks import (
    LabelGuess,
    Likeness,
    class_shares,
    guess_labels,
    likeness,
    presence,
)
from fedtail.privacy.inversion import (
    Inversion,
    class_groups,
    head_changes,
    inversion,
    single_samples,
)
from fedtail.privacy.membership import Membership, members_of_model, members_of_round
from fedtail.privacy.moment_audit import MomentLeak, moment_leak
from fedtail.privacy.views import SEEN_NOTES, Seen, first_round, seen_by_server
from fedtail.setting import Setting, data_digests
from fedtail.settled import restore_inputs

logger = logging.getLogger("fedtail")
ATTACKED = 2000
"""How many samples features are compared with on each side."""
SHADOWS = 16
"""How many shadow models the membership attack trains by default."""


@dataclass(frozen=True)
class View:
    """What one protection leaves the server to see, and what it makes of it.

    Attributes
    ----------
    protection
        Which one.
    note
        What the server sees, in words.
    labels
        Class shares from the change of the classifier; none if it is not sent.
    presence
        AUC of telling which classes a client holds, from class gradients or else from the change of
        the classifier; none if neither is sent.
    members
        Which samples were trained on; none if no model is sent.
    inversion
        Features of samples that are their client's only one of a class; none without such samples,
        or if no linear head is sent.
    """

    protection: str
    note: str
    labels: LabelGuess | None = None
    presence: float | None = None
    members: Membership | None = None
    inversion: Inversion | None = None


@dataclass(frozen=True)
class Audit:
    """What was found.

    Attributes
    ----------
    method
        The run's method.
    used
        What protected the run itself.
    clients, classes
        How many there are.
    views
        One a protection; those that the method cannot have are left out, and `refused` says why.
    members
        Which samples the shipped model was trained on, if shadow runs were asked for.
    features
        How real the features are that the server made, if it made any.
    moments
        What sums of features tell of clients with few samples, if such sums are asked for.
    """

    method: str
    used: str
    clients: int
    classes: int
    views: list[View]
    refused: str
    members: Membership | None
    features: Likeness | None
    moments: MomentLeak | None = None

    def plain(self) -> dict[str, Any]:
        """Return it as JSON values."""
        plain: dict[str, Any] = _plain(self)
        return plain


def _plain(value: Any) -> Any:
    """Return tuples with names as mappings, also inside of lists and data classes."""
    if isinstance(value, Audit | View):
        return {name: _plain(each) for name, each in vars(value).items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value._asdict() if hasattr(value, "_asdict") else value


def audit(
    folder: RunFolder,
    setting: Setting,
    epsilon: float = 8.0,
    shadows: int = SHADOWS,
    runs: int = 0,
) -> Audit:
    """Audit a finished run.

    Parameters
    ----------
    folder, setting
        The run, and the real things behind its description.
    epsilon
        Of the one noisy update that the local model is shown with, at the run's δ and clipping
        norm.
    shadows
        How many times the first round is trained again, by up to 20 clients, for the membership
        attack on it; 0 for none.
    runs
        How many times the whole run is done again, for the membership attack on its model.
    """
    if not folder.finished:
        raise FedtailError(f"'{folder.path}' is not finished: an audit examines what is shipped")
    # The frozen part is in what was shipped.
    for said in folder.must_be_on(data_digests(setting.dataset, setting.split)):
        logger.warning("%s", said)
    restore_inputs(setting, folder)
    experiment, method, model = setting.experiment, setting.method, setting.model
    with numerics(experiment.threads):
        runtime = setting.runtime()
        witnessed = first_round(setting, runtime)
        counts = {w.task.client: setting.federation.counts(w.task.client) for w in witnessed}
        shown = seen_by_server(witnessed, setting, epsilon)
        members = members_of_round(witnessed, shown, setting, runtime, epsilon, shadows)
        singles = single_samples(witnessed, setting)
        views = [
            View(
                name,
                SEEN_NOTES[name].format(epsilon=epsilon),
                guessed_shares(seen, counts, model),
                classes_held(seen, counts, model),
                members[name],
                inversion(seen, singles, model),
            )
            for name, seen in shown.items()
        ]
        tensors = folder.shipped()
        return Audit(
            method=method.name,
            used=experiment.protected or "nothing",
            clients=len(setting.federation),
            classes=setting.dataset.num_classes,
            views=views,
            refused=method.asks().single,
            members=members_of_model(setting, tensors, runs, trained_again),
            features=made_features(folder, setting, runtime),
            moments=moment_leak(setting, runtime, tensors),
        )


def guessed_shares(
    seen: Mapping[int, Seen], counts: Mapping[int, Tensor], model: SplitModel
) -> LabelGuess | None:
    """Guess the class shares of all clients from the change of the classifier, or read them."""
    shares = {}
    for k, tensors in seen.items():
        told, change = tensors.get(f"{ROWS}/{HELD}"), head_change(tensors, model)
        if told is not None:  # clipped ones add up to less than one, noisy ones may be negative
            positive = told.double().clamp(min=0)
            shares[k] = positive / positive.sum().clamp(min=1e-12)
        elif change is not None:
            shares[k] = class_shares(change)
    return guess_labels(shares, counts) if len(shares) == len(seen) and shares else None


def classes_held(
    seen: Mapping[int, Seen], counts: Mapping[int, Tensor], model: SplitModel
) -> float | None:
    """Tell the classes of clients from the sizes of class gradients, or from the classifier."""
    known: dict[int, Tensor] = {}
    for k, tensors in seen.items():
        table, change = row_sizes(tensors, len(counts[k])), head_change(tensors, model)
        table = tensors.get(f"{ROWS}/{HELD}") if table is None else table
        if table is not None:
            known[k] = table
        elif change is not None:
            known[k] = change.double().sum(dim=1)
    return presence(known, counts) if len(known) == len(seen) and known else None


def head_change(seen: Seen, model: SplitModel) -> Tensor | None:
    """Return the change of the classifier's weight (classes, features), if it can be seen."""
    changes, _ = head_changes(seen, model)
    return torch.stack(changes).mean(dim=0) if changes else None


def row_sizes(seen: Seen, num_classes: int) -> Tensor | None:
    """Return the size of each class's gradient; a class without a row has none."""
    for group, classes in class_groups(seen):
        rows = seen.get(f"{group}/weight")
        if rows is not None:
            sizes = torch.zeros(num_classes, dtype=torch.float64)
            sizes[classes] = rows.double().flatten(start_dim=1).norm(dim=1)
            return sizes
    return None


def trained_again(setting: Setting) -> Mapping[str, Tensor]:
    """Do a whole run on other samples, protected as the run was, and return what it ships."""
    from fedtail.engines.block_size import block_size
    from fedtail.loop import Loop
    from fedtail.privacy.plan import protection

    with protection(setting) as protected:
        runtime = setting.runtime(None if protected is None else protected.client)
        runtime.together, _ = block_size(setting.experiment.together, runtime, setting.cohort)
        side = setting.experiment.robust_side if protected is None else protected.server
        engine = Embedded(runtime, server_side=side)
        budget = None if protected is None else protected.budget
        return Loop(setting, engine, None, (), budget).run(False).tensors


def made_features(folder: RunFolder, setting: Setting, runtime: Runtime) -> Likeness | None:
    """Compare features that the server made with those of real samples, where a state has some."""
    state = setting.method.init(setting.model, setting.server(0))
    checkpoint = Checkpoint(folder.checkpoint)
    saved = checkpoint.load(type(state))
    for damage in checkpoint.damage:
        logger.warning("%s; the features are those of the checkpoint before", damage)
    made = getattr(saved.state, "features", None) if saved is not None else None
    if saved is None or not isinstance(made, Tensor) or made.ndim != 3:
        return None
    model = setting.model
    model.load(saved.state.model)
    model.eval()
    federation = setting.federation
    with torch.inference_mode():
        train, y_train = _features(federation.client, model, len(federation))
        x, y = federation.test_batch(0, min(ATTACKED, len(federation.dataset.test)))
        return likeness(made, train, y_train, model.features(x).cpu(), y.cpu())


def _features(client: Any, model: SplitModel, clients: int) -> tuple[Tensor, Tensor]:
    """Return features and labels of the training samples, up to `ATTACKED`."""
    features, labels, found = [], [], 0
    for k in range(clients):
        data = client(k)
        for index in torch.split(torch.arange(len(data)), 500):
            features.append(model.features(data.batch(index)[0]).cpu())
            labels.append(data.labels[index])
            found += len(index)
        if found >= ATTACKED:
            break
    return torch.cat(features), torch.cat(labels)
