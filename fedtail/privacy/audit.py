"""The audit of a run: what its server could learn, measured, with each protection and without.

The first round is replayed with every client, exactly as the run's seed made it: early updates tell
most. Of the same updates the server is shown what it would see under each protection. What the run
left behind (the model, features that the server made) is examined as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fedtail.callbacks import Checkpoint
from fedtail.engines import Embedded
from fedtail.engines.runtime import Clock, Runtime, numerics
from fedtail.errors import FedtailError
from fedtail.folder import RunFolder
from fedtail.forms import CLASSES, Form
from fedtail.models.heads import class_axis
from fedtail.models.split_model import SplitModel
from fedtail.privacy.attacks import (
    LabelGuess,
    Likeness,
    class_shares,
    guess_labels,
    likeness,
    membership,
    presence,
)
from fedtail.privacy.clipping import private_update
from fedtail.privacy.gaussian import analytic_sigma
from fedtail.privacy.layout import part_of
from fedtail.privacy.moment_audit import MomentLeak, moment_leak
from fedtail.privacy.noise import seeded_bytes
from fedtail.protocol import Client, Payload, Server, Task, Update, grouped
from fedtail.reduce import Reduced, reduced
from fedtail.setting import Setting
from fedtail.settled import restore_inputs

Seen = Mapping[str, Tensor]
"""What the server can read of one client's update, by name."""

NOTHING, ENCRYPTED, CLIPPED, NOISY = (
    "no protection",
    "encrypted",
    "private, central",
    "private, local",
)
logger = logging.getLogger("fedtail")
ATTACKED = 2000
"""How many samples the membership attack looks at on each side."""


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
        AUC of telling which classes a client holds from class gradients; none if none are sent.
    """

    protection: str
    note: str
    labels: LabelGuess | None = None
    presence: float | None = None


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
    member_advantage
        Of the loss threshold attack on the shipped model.
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
    member_advantage: float | None
    features: Likeness | None
    moments: MomentLeak | None = None

    def plain(self) -> dict[str, Any]:
        """Return it as JSON values."""
        views = [
            {**asdict(v), "labels": None if v.labels is None else v.labels._asdict()}
            for v in self.views
        ]
        features = None if self.features is None else self.features._asdict()
        moments = None if self.moments is None else self.moments._asdict()
        return {**asdict(self), "views": views, "features": features, "moments": moments}


@dataclass(frozen=True)
class Witnessed:
    """One client's task and its answer as the method made it, before any protection."""

    task: Task
    answer: Payload
    client: Client
    form: Form


def audit(folder: RunFolder, setting: Setting, epsilon: float = 8.0) -> Audit:
    """Audit a finished run.

    Parameters
    ----------
    folder, setting
        The run, and the real things behind its description.
    epsilon
        Of the one noisy update that the local model is shown with, at the run's δ and clipping
        norm.
    """
    if not folder.finished:
        raise FedtailError(f"'{folder.path}' is not finished: an audit examines what is shipped")
    restore_inputs(setting, folder)
    experiment, method = setting.experiment, setting.method
    with numerics(experiment.threads):
        runtime = setting.runtime()
        witnessed = first_round(setting, runtime)
        counts = {w.task.client: w.client.counts for w in witnessed}
        refused = method.asks().single
        shown = {NOTHING: plain_view(witnessed)}
        if not refused:
            shown |= protected_views(witnessed, setting, epsilon)
        notes = {
            NOTHING: "every update as it was sent",
            ENCRYPTED: "the sum of all updates",
            CLIPPED: "every update, clipped; it adds the noise itself",
            NOISY: f"every update, clipped and noisy (epsilon {epsilon:g} for this one)",
        }
        views = [
            examine(name, notes[name], seen, counts, setting.model) for name, seen in shown.items()
        ]
        tensors = folder.shipped()
        return Audit(
            method=method.name,
            used=experiment.protected or "nothing",
            clients=len(setting.federation),
            classes=setting.dataset.num_classes,
            views=views,
            refused=refused,
            member_advantage=member_advantage(runtime, tensors),
            features=made_features(folder, setting, runtime),
            moments=moment_leak(setting, runtime, tensors),
        )


def first_round(setting: Setting, runtime: Runtime) -> list[Witnessed]:
    """Do the first exchange of round 1 again, with every client."""
    from fedtail.exchange import Ledger, drive  # the loop knows the plan, which knows this package

    method, server = setting.method, setting.server(0)
    state = method.init(setting.model, server)
    engine = Embedded(runtime)
    state = drive(method.setup(state, server), state, engine, server, Ledger())
    everybody: Server = replace(setting.server(1), per_round=len(setting.federation))
    found, rounds = [], setting.experiment.rounds
    for task in next(method.round(state, everybody), []):
        answer = runtime.perform(task, dict(engine.states.get(task.client, {})), Clock(1, rounds))
        federation = setting.federation
        client = Client(
            id=task.client,
            data=federation.client(task.client),
            counts=federation.counts(task.client),
            model=setting.model,
            state={},
            round=1,
            rounds=rounds,
            seed=setting.experiment.seed,
        )
        found.append(Witnessed(task, answer, client, runtime.declared(task)))
    return found


def plain_view(witnessed: Iterable[Witnessed]) -> dict[int, Seen]:
    """Return what is seen without protection: the change of whatever was sent out."""
    seen: dict[int, Seen] = {}
    for w in witnessed:
        sent = w.task.payload.tensors
        seen[w.task.client] = {
            name: t - sent[name] if name in sent and t.is_floating_point() else t
            for name, t in w.answer.tensors.items()
        }
    return seen


def protected_views(
    witnessed: list[Witnessed], setting: Setting, epsilon: float
) -> dict[str, dict[int, Seen]]:
    """Return what is seen of the same updates under each protection."""
    privacy = setting.experiment.privacy
    # The updates of the first one's part, as the server is told of them.
    own = [w for w in witnessed if part_of(w.form) == part_of(witnessed[0].form)]
    found = reduced([Update(w.task.client, w.answer) for w in own], own[0].form)
    groups = {name.partition("/")[0] for name in own[0].form.tensors}
    mean = {n: t for g in groups for n, t in grouped(g, _group(found, g, own[0].form)).items()}
    sigma = analytic_sigma(epsilon, privacy.delta, 2 * privacy.clip)
    views: dict[str, dict[int, Seen]] = {ENCRYPTED: {}, CLIPPED: {}, NOISY: {}}
    for w in witnessed:
        views[ENCRYPTED] |= plain_view([replace(w, answer=Payload(mean))])
        source = seeded_bytes(w.client.seed, "audit/noise", w.client.round, w.client.id)
        rows = {f"{g}/{CLASSES}": torch.arange(c) for g, c in w.form.rows.items()}
        for name, noise in ((CLIPPED, 0.0), (NOISY, sigma)):
            safe = private_update(w.answer, w.form, w.task.payload, privacy.clip, noise, source)
            views[name][w.task.client] = {**safe.tensors, **rows}
    return views


def _group(found: Reduced, group: str, form: Form) -> dict[str, Tensor]:
    part = part_of(form)
    return found[group] or (found[group, part] if part is not None else {})


def examine(
    protection: str,
    note: str,
    seen: Mapping[int, Seen],
    counts: Mapping[int, Tensor],
    model: SplitModel,
) -> View:
    """Attack what is seen."""
    changes = {k: head_change(tensors, model) for k, tensors in seen.items()}
    shares = {k: class_shares(change) for k, change in changes.items() if change is not None}
    labels = guess_labels(shares, counts) if len(shares) == len(seen) and shares else None
    tables = {k: row_sizes(tensors, len(counts[k])) for k, tensors in seen.items()}
    known = {k: table for k, table in tables.items() if table is not None}
    held = presence(known, counts) if len(known) == len(seen) and known else None
    return View(protection, note, labels, held)


def head_change(seen: Seen, model: SplitModel) -> Tensor | None:
    """Return the change of the classifier's weight (classes, features), if it can be seen."""
    changes = []
    for name, head in zip(model.head_names, model.heads, strict=True):
        change = seen.get(f"model/{name}.weight" if name else "model/weight")
        if change is None or change.ndim != 2:
            return None
        changes.append(change if class_axis(head) == 0 else change.T)
    return torch.stack(changes).mean(dim=0) if changes else None


def row_sizes(seen: Seen, num_classes: int) -> Tensor | None:
    """Return the size of each class's gradient; a class without a row has none."""
    for name, classes in seen.items():
        group, _, last = name.partition("/")
        rows = seen.get(f"{group}/weight")
        if last == "classes" and rows is not None:
            sizes = torch.zeros(num_classes, dtype=torch.float64)
            sizes[classes] = rows.double().flatten(start_dim=1).norm(dim=1)
            return sizes
    return None


def member_advantage(runtime: Runtime, tensors: Mapping[str, Tensor]) -> float | None:
    """Attack the shipped model: tell training samples from test samples by small losses."""
    model, federation = runtime.load_tested(tensors), runtime.federation
    some = torch.unique(torch.linspace(0, len(federation.order) - 1, ATTACKED).long())
    positions = federation.order[some]
    everyone = replace(
        federation.client(0), positions=positions, labels=federation.train.y[positions]
    )
    batches = torch.split(torch.arange(len(positions)), 500)
    mine = [losses(model, *everyone.batch(index)) for index in batches]
    last = min(ATTACKED, len(federation.dataset.test))
    theirs = [
        losses(model, *federation.test_batch(start, min(start + 500, last)))
        for start in range(0, last, 500)
    ]
    return membership(torch.cat(mine), torch.cat(theirs), everyone.labels, federation.test.y[:last])


def losses(model: SplitModel, x: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy of each sample."""
    with torch.inference_mode():
        return functional.cross_entropy(model(x), y, reduction="none").cpu()


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
