"""The loop: it knows no method, and no method knows it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fedtail.callbacks import (
    Callback,
    Checkpoint,
    JsonLines,
    Record,
    RunInfo,
    Snapshot,
    read_records,
    rebuild,
    trackers,
)
from fedtail.engines import Dropped, Embedded, Engine
from fedtail.engines.runtime import numerics
from fedtail.engines.workers import bounded
from fedtail.errors import FedtailError, RunStopped, blaming, some
from fedtail.exchange import Ledger, drive, first_reason, stop_if_empty
from fedtail.experiment import Experiment
from fedtail.folder import RunFolder
from fedtail.lock import locked
from fedtail.metrics import Evaluation, personal_scores, scores
from fedtail.metrics.scores import SCORES
from fedtail.privacy.budget import Budget
from fedtail.privacy.guard import guarded
from fedtail.protocol import Scalar, Server, Task
from fedtail.report.callback import ReportFile
from fedtail.result import Result
from fedtail.setting import Setting, prepare
from fedtail.training.warm_up import warm_up

logger = logging.getLogger("fedtail")
MODELS_AT_ONCE = 8
"""How many clients' own models are in memory while they are tested."""


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
        if folder is not None and resume:
            stack.enter_context(locked(folder.path))
        stack.enter_context(numerics(experiment.threads))
        # 1. Everything is loaded and checked before anything is written.
        setting = prepare(experiment)
        guard = stack.enter_context(guarded(setting))
        if folder is not None and not resume:
            stack.enter_context(locked(folder.path))
            folder.must_be_new()  # another process may have been faster
        runtime = setting.runtime(guard.shield)
        workers, remarks = bounded(experiment.workers, setting.cohort)
        embedded = Embedded(
            runtime,
            workers,
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
        warm_up(setting.device)
        return Loop(setting, engine, folder, watchers, guard.budget, remarks).run(resume)


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
    remarks: Sequence[str] = ()  # what is odd before the first round, told once all are listening
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
            self.warn(self.folder.must_be_on(self.setting.digests()))
        saved = self.restore(type(state)) if resume else None
        done = 0 if saved is None else saved.round
        history = self.history(done, {} if saved is None else saved.record) if resume else []
        carried = Ledger()
        told: Mapping[str, Scalar] = {}
        if saved is None:
            self.begin()
            state = drive(method.setup(state, server), state, self.engine, server, carried)
            if carried.kept:
                said = first_reason(carried.dropped)
                raise RunStopped(f"no client answered the preliminary exchange ({said})")
            carried.clients.clear()  # its cost is the first round's, its answers are not
            told = server.logged
        else:
            state = saved.state
            self.engine.states.update(saved.client_states)
        self.tell_start(done)
        self.warn(self.remarks)
        for number in range(done + 1, experiment.rounds + 1):
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
            snapshot = Snapshot(number, state, dict(self.engine.states), record)
            for callback in self.callbacks:
                callback.on_snapshot(snapshot)
        # 4. What is shipped.
        return self.end(state, history)

    def affords(self, number: int) -> bool:
        """Whether the privacy budget, if there is one, allows for this round."""
        return self.budget is None or self.budget.affords(number)

    def restore(self, kind: type[Any]) -> Snapshot | None:
        """Return what the run's newest whole checkpoint holds, if it got that far."""
        checkpoint = next((c for c in self.callbacks if isinstance(c, Checkpoint)), None)
        saved = None if checkpoint is None else checkpoint.load(kind)
        if checkpoint is not None and saved is not None:
            self.warn(
                f"{damage}; the run goes on from the checkpoint of round {saved.round}"
                for damage in checkpoint.damage
            )
        return saved

    def history(self, done: int, last: Record) -> list[dict[str, Any]]:
        """Return the records of the rounds that the checkpoint stands on, as far as they are there.

        Parameters
        ----------
        done
            How many rounds that is.
        last
            The record of the last of them, which the checkpoint has itself.
        """
        if self.folder is None:
            return []
        metrics, read = self.folder.metrics, read_records(self.folder.metrics)
        found = {done: dict(last)} if last else {}
        found |= {record["round"]: record for record in read}
        if self.budget is not None:
            self.budget.recall(found, done)
        if read and not done:
            self.warn([f"'{self.folder.path}' has no checkpoint: the run starts again"])
        history = [found[number] for number in range(1, done + 1) if number in found]
        missing = sorted(set(range(1, done + 1)) - found.keys())
        if missing:
            self.warn([f"'{metrics}' is damaged: what it held of round {some(missing)} is lost"])
        if history != [record for record in read if record["round"] <= done]:
            rebuild(metrics, history)
        return history

    def begin(self) -> None:
        """Write what is known before the first round."""
        if self.folder is not None and not self.folder.experiment.exists():
            experiment = self.setting.experiment
            facts = {"threads": experiment.threads, "device": str(self.setting.device)}
            split, digests = self.setting.split.to_json(), self.setting.digests()
            self.folder.begin(experiment.to_toml(), split, facts, digests)

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
        """Tell the callbacks what went wrong, and then the log: what is shown need not be said."""
        for message in messages:
            for callback in self.callbacks:
                callback.on_warning(message)
            logger.warning("%s", message)

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
                replies = self.engine.perform(some, server.round, server.rounds, single=True)
                self.warn_after(server, replies.dropped)
                dropped += replies.dropped
                models = [update.payload.group("model") for update in replies.found.each]
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
        server = self.setting.server(history[-1]["round"])
        # A run that was killed after its last round has not tested in this process.
        tensors = self.tested or self.shippable(state, server, Ledger())
        if self.folder is not None:
            evaluation = self.evaluation or self.engine.evaluate(tensors)
            self.folder.keep_confusion(self.setting.dataset.classes, evaluation.confusion)
            self.folder.finish(tensors)
        for callback in self.callbacks:
            callback.on_end(history[-1], tensors)
        network = self.setting.runtime().load_tested(tensors)
        path = None if self.folder is None else self.folder.path
        return Result(history, tensors, network.module, state, path)
