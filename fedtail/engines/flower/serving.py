"""The server half for a federation of machines: the loop of every run, without the clients' data.

The server has the test set, the class names and the network, as agreed in the app. What the clients
hold it never sees; a run leaves the same folder as an embedded one and is resumed from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from flwr.app import Context
from flwr.serverapp import Grid
from pydantic import Field

from fedtail.callbacks import Callback, own_callbacks
from fedtail.data.dataset import Dataset, Normalisation, Samples, Source, checked_samples
from fedtail.data.federation import Federation
from fedtail.data.longtail import NoTail
from fedtail.data.partitions import Natural
from fedtail.data.split import Split, SplitRecipe
from fedtail.device import choose_device, runs_on_images
from fedtail.engines.flower.engine import loop_over
from fedtail.engines.flower.executor import FlowerExecutor, RunTerms
from fedtail.engines.flower.roster import Roster
from fedtail.engines.flower.status import StatusFiles
from fedtail.engines.flower.user_client import ModelMaker, networks
from fedtail.engines.runtime import numerics
from fedtail.errors import FedtailError
from fedtail.experiment import Experiment
from fedtail.folder import RunFolder
from fedtail.lock import locked
from fedtail.methods import Method
from fedtail.privacy.plan import protection
from fedtail.result import Result
from fedtail.setting import Setting, check_normalisation, takes_whole

CONFIG_NAMES = {
    field: field.replace("_", "-")
    for field in (
        *("clients", "rounds", "seed", "threads", "per_round", "min_clients", "validation"),
        *("keep", "score", "patience", "train", "precision", "secure", "secure_threshold"),
    )
}
"""Fields of an experiment that a run's configuration may have, and their names there."""


class OnClients(Source):
    """Training data that only clients have."""

    name: ClassVar[str] = "on_clients"
    shapes: dict[str, list[int]] = Field(description="the shape of the test set")


@dataclass(frozen=True)
class Remote(Setting):
    """A setting whose training data is elsewhere."""

    agreed: tuple[int, ...] = ()

    @property
    def class_counts(self) -> tuple[int, ...]:
        """The class counts that the app names, or zeros: classes then rank by their number."""
        return self.agreed or (0,) * self.dataset.num_classes


def serve(
    grid: Grid,
    context: Context,
    *,
    method: Method[Any],
    model: ModelMaker,
    test: tuple[Any, Any],
    classes: Sequence[str],
    class_counts: Sequence[int] = (),
    normalisation: Normalisation = "none",
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Run a method on the clients of a federation and leave a run folder.

    The run's configuration (``[tool.flwr.app.config]``, or ``flwr run --run-config``) says
    ``clients``, ``rounds`` and ``out``, and may say ``per-round``, ``min-clients``, ``seed``,
    ``threads``, ``deadline`` (seconds of an exchange), ``join`` (seconds until all nodes are
    there) and ``resume``; and ``validation`` (the share that every client holds out of training),
    ``keep``, ``score``, ``patience``, ``train``, ``secure`` and ``secure-threshold``, and the
    fields of ``privacy`` (``privacy.epsilon``, ...) and ``robust`` (``robust.name``, ...), as in an
    experiment.

    Parameters
    ----------
    grid, context
        What Flower gives the main function of a server app.
    method
        What is trained, and how.
    model
        The network, or what makes it; the clients' app has the same.
    test
        Inputs and labels of the agreed test set, inputs as the clients have them.
    classes
        The names of the agreed classes; a label is a position in them.
    class_counts
        How many samples of each class all clients have together, if they agreed to tell: it decides
        which classes the scores call many-, medium- and few-shot, and nothing else.
    normalisation
        "standard" or "global": ask the clients for sums of their inputs before the first round, and
        normalise with what comes of them; "none": inputs are as the network takes them.
    callbacks
        What watches.
    """
    config = dict(context.run_config)
    folder = RunFolder(Path(str(config["out"])).expanduser().resolve())
    resume = bool(config.get("resume", False))
    folder.must_be_a_run() if resume else folder.must_be_new()
    setting = remote(
        config, method, model, test, tuple(classes), tuple(class_counts), normalisation
    )
    experiment = setting.experiment
    status = StatusFiles(folder.path)
    with numerics(experiment.threads), ExitStack() as stack:
        stack.enter_context(locked(folder.path))
        watchers = [*callbacks, *own_callbacks(experiment, folder)]
        for watcher in watchers:
            stack.callback(watcher.close)
        join = float(config.get("join", 600.0))
        protected = stack.enter_context(protection(setting))
        roster = Roster(grid, len(setting.federation), join, private=protected is not None)
        roster.assemble(join)
        executor = executor_of(
            grid, roster, setting, folder.path.name, float(config.get("deadline", 3600))
        )
        loop = loop_over(executor, setting, protected, folder, watchers)
        loop.begin()
        status.clear()
        executor.journal = status.journal
        with status.attended():
            return loop.run(resume)


def executor_of(
    grid: Grid, roster: Roster, setting: Setting, run: str, deadline: float
) -> FlowerExecutor:
    """Return the executor that carries this setting's tasks to clients with data of their own."""
    experiment = setting.experiment
    terms = RunTerms(
        run=run,
        deadline=deadline,
        threads=experiment.threads,
        checkpoint_every=experiment.checkpoint_every,
        method=setting.method.describe(),
        more={
            "seed": experiment.seed,
            "classes": setting.dataset.num_classes,
            "validation": experiment.validation.share,
            "train": experiment.train,
            "precision": experiment.precision,
        },
    )
    return FlowerExecutor(grid, roster, terms, setting.runtime())


def told_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an experiment that a run's configuration has."""
    given = {field: config[name] for field, name in CONFIG_NAMES.items() if name in config}
    for section in ("privacy", "robust"):
        of = f"{section}."
        told = {name.removeprefix(of): v for name, v in config.items() if name.startswith(of)}
        given |= {section: told} if told else {}
    return given


def remote(
    config: dict[str, Any],
    method: Method[Any],
    model: ModelMaker,
    test: tuple[Any, Any],
    classes: tuple[str, ...],
    class_counts: tuple[int, ...],
    normalisation: Normalisation = "none",
) -> Remote:
    """Return the setting of a federation whose training data stays where it is."""
    if class_counts and len(class_counts) != len(classes):
        raise FedtailError(f"{len(class_counts)} class counts for {len(classes)} classes")
    held = checked_samples(test[0], test[1], len(classes), "the test set")
    shape = list(held.x.shape)
    experiment = Experiment(
        method=method, data=OnClients(shapes={"x_test": shape}), model=model, **told_fields(config)
    )
    if experiment.clients is None:
        raise FedtailError("the run's configuration must say 'clients', how many nodes there are")
    device = choose_device(experiment.device)
    base, trained = networks(
        model, method, experiment.seed, device, experiment.train, experiment.precision
    )
    tokens = takes_whole(base, held.x[torch.arange(min(2, len(held)))], len(classes))
    none = Samples(torch.empty(0, *shape[1:]), torch.empty(0, dtype=torch.int64))
    parts = [np.empty(0, np.int64)] * experiment.clients
    empty = np.empty(0, np.int64)
    recipe = SplitRecipe(
        tail=NoTail(), partition=Natural(), clients=experiment.clients, seed=experiment.seed
    )
    dataset = Dataset(none, held, classes, normalisation=normalisation)
    method.check_data(dataset)
    federation = Federation(
        dataset, parts, None, device, runs_on_images(trained, device), tokens=tokens
    )
    split = Split(recipe, empty, len(classes), empty, parts, empty)
    setting = Remote(
        experiment, dataset, split, federation, base, trained, device, agreed=class_counts
    )
    if experiment.protected:
        check_protected(setting)
    return setting


def check_protected(setting: Setting) -> None:
    """Refuse what would leave clients as it is, though their updates are protected."""
    method, server = setting.method, setting.server(0)
    check_normalisation(setting.federation, setting.experiment)
    if method.personal(method.init(server.model, server), server):
        raise FedtailError(
            f"method '{method.name}' has clients' own models tested, which would leave them as they"
            " are: updates can be protected where all clients are on this machine"
        )
