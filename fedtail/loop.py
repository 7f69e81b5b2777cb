"""The loop: it knows no method, and no method knows it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from fedtail.callbacks import (
    Callback,
    Checkpoint,
    JsonLines,
    Record,
    RunInfo,
    Snapshot,
    read_records,
    trackers,
)
from fedtail.engines import Dropped, Embedded, Engine, Replies
from fedtail.engines.workplace import numerics
from fedtail.errors import FedtailError, RunStopped, blaming
from fedtail.experiment import Experiment
from fedtail.folder import RunFolder
from fedtail.metrics import Evaluation, personal_scores, scores
from fedtail.metrics.scores import SCORES
from fedtail.privacy.budget import Budget
from fedtail.privacy.guard import guarded
from fedtail.protocol import Exchange, Scalar, Server, Task
from fedtail.report.callback import ReportFile
from fedtail.setting import Setting, prepare
from fedtail.state import digest

S = TypeVar("S")
logger = logging.getLogger("fedtail")
MODELS_AT_ONCE = 8
"""How many clients' own models are in memory while they are tested."""
EMPTY_ROUNDS = 3
"""How many rounds in a row without a valid update stop a run."""


@dataclass
class Ledger:
    """What one round's exchanges cost, and who took part.

    Attributes
    ----------
    traffic
        Bytes to and from each client.
    clients
        Whose update was used.
    dropped
        Whose was not, and why.
    kept
        Whether an exchange brought nothing, so that the old state was kept.
    """

    traffic: dict[int, list[int]] = field(default_factory=dict)
    clients: set[int] = field(default_factory=set)
    dropped: list[Dropped] = field(default_factory=list)
    kept: bool = False

    def count(self, client: int, direction: int, nbytes: int) -> None:
        """Add bytes sent down (0) or up (1)."""
        self.traffic.setdefault(client, [0, 0])[direction] += nbytes

    def count_exchange(self, tasks: Sequence[Task], replies: Replies) -> None:
        """Add what one exchange sent, as the engine says or as the payloads do."""
        if replies.traffic is not None:
            for client, (down, up) in replies.traffic.items():
                self.count(client, 0, down)
                self.count(client, 1, up)
            return
        for task in tasks:
            self.count(task.client, 0, task.payload.nbytes)
        for update in replies.updates:
            self.count(update.client, 1, update.payload.nbytes)


@dataclass(frozen=True)
class Result:
    """What a run leaves.

    Attributes
    ----------
    history
        One record a round, as in ``metrics.jsonl``.
    tensors
        The model that is tested and shipped, by the names of the user's own module.
    network
        That model, loaded.
    state
        The server's state after the last round.
    folder
        The run folder, if there is one.
    """

    history: list[dict[str, Any]]
    tensors: dict[str, Tensor]
    network: nn.Module
    state: Any
    folder: Path | None

    @property
    def metrics(self) -> dict[str, Any]:
        """The last round's record."""
        return self.history[-1]

    @property
    def digest(self) -> str:
        """SHA-256 of the model: equal runs have equal digests."""
        return digest(self.tensors)


def drive(exchange: Exchange[S], state: S, engine: Engine, server: Server, ledger: Ledger) -> S:
    """Carry one generator of a method through: tasks out, updates in, until it returns a state.

    If an exchange brings no valid update, the state stays as it was, and nobody's update was used;
    if all its clients raised, the run stops.
    """
    answer: Any = None  # what starts a generator
    while True:
        try:
            with blaming(f"server half, round {server.round}"):
                tasks = exchange.send(answer)
        except StopIteration as stop:
            new: S = stop.value
            return new
        replies = engine.perform(tasks, server.round, server.rounds)
        ledger.count_exchange(tasks, replies)
        ledger.dropped += replies.dropped
        ledger.clients.update(update.client for update in replies.updates)
        if tasks and not replies.updates:
            if replies.dropped and all(d.raised for d in replies.dropped):
                raise RunStopped(
                    f"round {server.round}: every client failed, {first_reason(replies.dropped)}"
                )
            ledger.kept = True
            ledger.clients.clear()
            exchange.close()
            return state
        answer = replies.updates


def first_reason(dropped: Sequence[Dropped]) -> str:
    """Return the first of many reasons, with whose it is."""
    return f"the first, client {dropped[0].client}: {dropped[0].reason}" if dropped else "no answer"


def stop_if_empty(empty: Sequence[bool], last: bool, dropped: Sequence[Dropped]) -> None:
    """Stop a run that learns nothing any more, or that ends without having learned anything.

    Parameters
    ----------
    empty
        Of each round so far, whether it had no valid update.
    last
        Whether there will be no other round.
    dropped
        Whose updates were not valid in the last of them.
    """
    in_a_row = next((n for n, one in enumerate(reversed(empty)) if not one), len(empty))
    if in_a_row >= EMPTY_ROUNDS or (last and in_a_row == len(empty)):
        rounds = "1 round" if in_a_row == 1 else f"{in_a_row} rounds"
        raise RunStopped(
            f"no valid update in {rounds}, up to round {len(empty)} ({first_reason(dropped)})"
        )


def run(
    experiment: Experiment,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Run an experiment.

    Parameters
    ----------
    experiment
        What to run.
    out
        The run folder; without one, nothing is written.
    resume
        Go on with the run in `out` from its last checkpoint.
    callbacks
        What watches.

    Returns
    -------
    Result
        The history, the model and the last state.
    """
    folder = None if out is None else RunFolder(Path(out))
    if resume and folder is None:
        raise FedtailError("resume needs the run folder: run(experiment, out=..., resume=True)")
    if folder is not None:
        folder.must_be_here() if resume else folder.must_be_new()
    with ExitStack() as stack:
        stack.enter_context(numerics(experiment.threads))
        # 1. Everything is loaded and checked before anything is written.
        setting = prepare(experiment)
        guard = stack.enter_context(guarded(setting))
        place = setting.workplace(guard.shield)
        embedded = Embedded(
            place,
            experiment.workers,
            experiment.threads,
            experiment.plugins,
            experiment.on_client_error == "drop",
            experiment.task_seconds,
        )
        stack.callback(embedded.close)
        engine = guard.around(embedded)
        watchers = [*callbacks, *own_callbacks(experiment, folder)]
        for watcher in watchers:
            stack.callback(watcher.close)
        return Loop(setting, engine, folder, watchers, guard.budget).run(resume)


def own_callbacks(experiment: Experiment, folder: RunFolder | None) -> list[Callback]:
    """Return what every run with a folder has, and the trackers that were asked for."""
    chosen: list[Callback] = [trackers[name]() for name in experiment.track]
    if folder is not None:
        chosen += [
            JsonLines(folder.metrics),
            Checkpoint(folder.checkpoint, experiment.checkpoint_every),
            ReportFile(folder.path),
        ]
    return chosen


@dataclass
class Loop:
    """One run, as it goes."""

    setting: Setting
    engine: Engine
    folder: RunFolder | None
    callbacks: Sequence[Callback]
    budget: Budget | None = None
    tested: dict[str, Tensor] | None = None  # the model of the last test
    evaluation: Evaluation | None = None  # and what came out

    def run(self, resume: bool) -> Result:
        """Run all rounds that are left."""
        experiment, method = self.setting.experiment, self.setting.method
        # 2. The state before round 1, or that of the last checkpoint.
        server = self.setting.server(0)
        with blaming("server half, before the first round"):
            state = method.init(self.setting.model, server)
        if resume and self.folder is not None:
            self.folder.must_hold(experiment.describe())
        saved = self.restore(type(state)) if resume else None
        carried = Ledger()
        told: Mapping[str, Scalar] = {}
        history: list[dict[str, Any]] = []
        if saved is None:
            self.begin()
            state = drive(method.setup(state, server), state, self.engine, server, carried)
            if carried.kept:
                said = first_reason(carried.dropped)
                raise RunStopped(f"no client answered the preliminary exchange ({said})")
            carried.clients.clear()  # its cost is the first round's, its answers are not
            told = server.logged
        else:
            state, history = saved.state, self.history(saved.round)
            self.engine.states.update(saved.client_states)
            if self.budget is not None:
                self.budget.recall(history)
        self.tell_start(saved.round if saved else 0)
        for number in range(len(history) + 1, experiment.rounds + 1):
            if not self.affords(number):
                self.warn([f"the privacy budget is spent after round {number - 1}"])
                break
            # 3. The exchanges of the round, then the test, then everything that watches.
            began = time.perf_counter()
            server = self.setting.server(number)
            server.logged.update(told)
            ledger, carried, told = carried, Ledger(), {}
            state = drive(method.round(state, server), state, self.engine, server, ledger)
            self.complain(number, ledger, history)
            record = self.record(number, state, server, ledger, began)
            history.append(record)
            for callback in self.callbacks:
                callback.on_round(record)
            snapshot = Snapshot(number, state, dict(self.engine.states))
            for callback in self.callbacks:
                callback.on_snapshot(snapshot)
        # 4. What is shipped.
        return self.end(state, history)

    def affords(self, number: int) -> bool:
        """Whether the privacy budget, if there is one, allows for this round."""
        return self.budget is None or self.budget.affords(number)

    def restore(self, kind: type[Any]) -> Snapshot | None:
        """Return what the run's checkpoint holds, if it got that far."""
        return next((c.load(kind) for c in self.callbacks if isinstance(c, Checkpoint)), None)

    def history(self, rounds: int) -> list[dict[str, Any]]:
        """Return the records of the rounds that the checkpoint stands on."""
        if self.folder is None:
            return []
        records = read_records(self.folder.metrics, until=rounds)
        if [record["round"] for record in records] != list(range(1, rounds + 1)):
            raise FedtailError(
                f"'{self.folder.metrics}' does not hold the {rounds} rounds of the checkpoint"
            )
        return records

    def begin(self) -> None:
        """Write what is known before the first round."""
        if self.folder is not None and not self.folder.experiment.exists():
            experiment = self.setting.experiment
            facts = {"threads": experiment.threads, "device": str(self.setting.device)}
            self.folder.begin(experiment.to_toml(), self.setting.split.to_json(), facts)

    def tell_start(self, done: int) -> None:
        """Tell the callbacks what is to come."""
        experiment = self.setting.experiment
        info = RunInfo(
            name=experiment.title,
            settings=experiment.describe(),
            rounds=experiment.rounds,
            done=done,
            folder=None if self.folder is None else self.folder.path,
            classes=self.setting.dataset.classes,
            class_counts=self.setting.class_counts,
        )
        for callback in self.callbacks:
            callback.on_start(info)

    def complain(self, number: int, ledger: Ledger, history: Sequence[Record]) -> None:
        """Warn of what went wrong in a round, and stop if too little went right."""
        messages = [
            f"round {number}: client {d.client} is left out: {d.reason}" for d in ledger.dropped
        ]
        if ledger.kept:
            messages.append(f"round {number}: no valid update, the model stays as it was")
        self.warn(messages)
        least = self.setting.min_clients
        if len(ledger.clients) < least:
            raise RunStopped(
                f"round {number} has {len(ledger.clients)} valid updates, "
                f"fewer than min_clients = {least}"
            )
        # Read from the records, so that a resumed run does not forget.
        before = [not record["clients"] and bool(record["dropped"]) for record in history]
        stop_if_empty([*before, ledger.kept], self.is_last(number), ledger.dropped)

    def is_last(self, number: int) -> bool:
        """Whether no round comes after this one."""
        return number == self.setting.experiment.rounds or not self.affords(number + 1)

    def warn_after(self, server: Server, dropped: Iterable[Dropped]) -> None:
        """Tell who was left out of what comes after training."""
        self.warn(
            f"after round {server.round}: client {d.client} is left out: {d.reason}"
            for d in dropped
        )

    def warn(self, messages: Iterable[str]) -> None:
        """Tell the log and the callbacks what went wrong."""
        for message in messages:
            logger.warning("%s", message)
            for callback in self.callbacks:
                callback.on_warning(message)

    def record(
        self, number: int, state: Any, server: Server, ledger: Ledger, began: float
    ) -> dict[str, Any]:
        """Return the round's line of ``metrics.jsonl``."""
        last = self.is_last(number)
        tested = last or number % self.setting.experiment.eval_every == 0
        extra = Ledger()
        found = self.test(state, server, extra) if tested else dict.fromkeys((*SCORES, "per_class"))
        # What comes after training is paid once, when it is over.
        for client, (down, up) in extra.traffic.items() if last else ():
            ledger.count(client, 0, down)
            ledger.count(client, 1, up)
        traffic = ledger.traffic.values()
        return {
            "round": number,
            **found,
            "bytes_up": sum(up for _, up in traffic),
            "bytes_down": sum(down for down, _ in traffic),
            "seconds": time.perf_counter() - began,
            "clients": sorted(ledger.clients),
            "dropped": [{"client": d.client, "reason": d.reason} for d in ledger.dropped],
            "traffic": {str(client): ledger.traffic[client] for client in sorted(ledger.traffic)},
            "method": dict(server.logged),
            **({} if self.budget is None else {"privacy": self.budget.record(number)}),
        }

    def test(self, state: Any, server: Server, ledger: Ledger) -> dict[str, Any]:
        """Score what would be shipped if training ended here."""
        self.tested = self.shippable(state, server, ledger)
        self.warn_after(server, ledger.dropped)
        self.evaluation = self.engine.evaluate(self.tested)
        shipped = self.scores(self.evaluation)
        with blaming(f"server half, round {server.round}"):
            tasks = self.setting.method.personal(state, server)
        return personal_scores(self.personal(tasks, server), shipped) if tasks else shipped

    def personal(self, tasks: Sequence[Task], server: Server) -> list[dict[str, Any]]:
        """Score the models that clients answer with; only a few are in memory at a time."""
        each: list[dict[str, Any]] = []
        dropped: list[Dropped] = []
        with self.forgotten(server, test=True):
            for start in range(0, len(tasks), MODELS_AT_ONCE):
                some = tasks[start : start + MODELS_AT_ONCE]
                replies = self.engine.perform(some, server.round, server.rounds)
                self.warn_after(server, replies.dropped)
                dropped += replies.dropped
                models = [update.payload.group("model") for update in replies.updates]
                each += [self.scores(self.engine.evaluate(model)) for model in models]
        if not each and all(d.raised for d in dropped):
            raise RunStopped(
                f"round {server.round}: no client's own model can be tested, "
                f"{first_reason(dropped)}"
            )
        return each

    def scores(self, evaluation: Evaluation) -> dict[str, Any]:
        """Return the scores of one model."""
        return scores(evaluation, self.setting.experiment.groups, self.setting.class_counts)

    def shippable(self, state: Any, server: Server, ledger: Ledger) -> dict[str, Tensor]:
        """Hold the exchanges that come after training, on a copy."""
        method = self.setting.method
        with self.forgotten(server):
            final = drive(method.finalize(state, server), state, self.engine, server, ledger)
        with blaming(f"server half, round {server.round}"):
            return dict(method.eval_model(final))

    @contextmanager
    def forgotten(self, server: Server, test: bool = False) -> Iterator[None]:
        """Let clients forget what they are asked to do in this block."""
        states = dict(self.engine.states)
        self.engine.after_training(server.round, test)
        try:
            yield
        finally:
            self.engine.states.clear()
            self.engine.states.update(states)

    def end(self, state: Any, history: list[dict[str, Any]]) -> Result:
        """Ship the model and tell everyone."""
        server = self.setting.server(len(history))
        # A run that was killed after its last round has not tested in this process.
        tensors = self.tested or self.shippable(state, server, Ledger())
        if self.folder is not None:
            evaluation = self.evaluation or self.engine.evaluate(tensors)
            self.folder.keep_confusion(self.setting.dataset.classes, evaluation.confusion)
            self.folder.finish(tensors)
        for callback in self.callbacks:
            callback.on_end(history[-1], tensors)
        network = self.setting.workplace().load_tested(tensors)
        path = None if self.folder is None else self.folder.path
        return Result(history, tensors, network.module, state, path)
