"""The loop: it knows no method, and no method knows it."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedtail.callbacks import (
    Callback,
    Checkpoint,
    Record,
    RunInfo,
    Snapshot,
    own_callbacks,
    read_records,
    rebuild,
)
from fedtail.choice import Choice
from fedtail.engines import Embedded, Engine
from fedtail.engines.block_size import block_size
from fedtail.engines.lazy_imports import import_lazily_used
from fedtail.engines.runtime import numerics
from fedtail.engines.workers import allowed_workers
from fedtail.errors import FedtailError, RunStopped, blaming, some
from fedtail.exchange import Ledger, drive, first_reason, stop_if_empty
from fedtail.experiment import Experiment, must_be_experiment
from fedtail.files import remove
from fedtail.folder import RunFolder
from fedtail.lock import locked
from fedtail.longer import take_up
from fedtail.metrics import shipped_record
from fedtail.models.split_model import as_shipped, load_tested
from fedtail.predictor import predictor_of
from fedtail.privacy.budget import Budget
from fedtail.privacy.plan import protection
from fedtail.protocol import ClientId, Scalar, Server
from fedtail.result import Result
from fedtail.scoring import Scoring, Trial, never_validated, untested
from fedtail.setting import Setting, prepare
from fedtail.settled import settle_inputs

logger = logging.getLogger("fedtail")


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
        Go on with the run in `out` from its last checkpoint, whether it was finished or not. The
        experiment is the same but for `rounds` and `patience`, which say when it ends now.
    callbacks
        What watches.

    Returns
    -------
    Result
        The history, the model and the last state.
    """
    must_be_experiment(experiment)
    callbacks = _as_list(callbacks)
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
        setting = prepare(experiment).with_features()
        for remark in () if resume else setting.remarks():
            logger.warning("%s", remark)
        protected = stack.enter_context(protection(setting))
        if folder is not None and not resume:
            stack.enter_context(locked(folder.path))
            folder.must_be_new()  # another process may have been faster
        runtime = setting.runtime(None if protected is None else protected.client)
        together, odd = block_size(experiment.together, runtime, setting.cohort)
        if resume and folder is not None:
            together = folder.together(together)  # a later version may have another rule
        runtime.together = together
        workers, remarks = allowed_workers(experiment.workers, setting.cohort)
        engine = Embedded(
            runtime,
            workers,
            experiment.threads,
            experiment.plugins,
            experiment.on_client_error == "drop",
            experiment.task_seconds,
            experiment.robust_side if protected is None else protected.server,
        )
        stack.callback(engine.close)
        watchers = [*callbacks, *own_callbacks(experiment, folder)]
        for watcher in watchers:
            stack.callback(watcher.close)
        budget = None if protected is None else protected.budget
        import_lazily_used(setting.device, setting.method)
        return Loop(setting, engine, folder, watchers, budget, [*remarks, *odd], together).run(
            resume
        )


def _as_list(callbacks: object) -> list[Callback]:
    """Return what is to watch, or refuse what cannot be told anything."""
    given: list[object] = list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]
    watching = [callback for callback in given if isinstance(callback, Callback)]
    if len(watching) < len(given) or not isinstance(callbacks, Iterable):
        raise FedtailError(
            f"callbacks={callbacks!r} is refused: give a list of objects of classes that "
            "derive from fedtail.Callback, such as [Mine()]"
        )
    return watching


@dataclass
class Loop:
    """One run, as it goes."""

    setting: Setting
    engine: Engine
    folder: RunFolder | None
    callbacks: Sequence[Callback]
    budget: Budget | None = None
    remarks: Sequence[str] = ()  # what is odd before the first round, told once all are listening
    together: int = 0  # how many clients train as one computation
    scored: Trial | None = None  # the last one
    choice: Choice = field(init=False)
    scoring: Scoring = field(init=False)

    def __post_init__(self) -> None:
        self.choice = Choice(self.setting.experiment)
        self.scoring = Scoring(self.setting, self.engine, self.warn)
        if self.budget is not None and self.folder is not None:
            self.budget.file = self.folder.privacy

    def run(self, resume: bool) -> Result:
        """Run all rounds that are left."""
        experiment, method = self.setting.experiment, self.setting.method
        # 2. The state before round 1, or that of the last checkpoint.
        server = self.setting.server(0)
        with blaming("server half, before the first round"):
            state = method.init(server.model, server)
        if resume and self.folder is not None:
            self.folder.must_hold(experiment.describe())
            self.warn(self.folder.must_be_on(self.setting.digests()))
        saved = self.restore(type(state)) if resume else None
        done = 0 if saved is None else saved.round
        if resume and self.folder is not None:
            self.warn(take_up(self.folder, experiment, done))
        history = self.history(done, {} if saved is None else saved.record) if resume else []
        carried = Ledger()
        told: Mapping[str, Scalar] = {}
        if saved is None:
            self.begin()
        settle_inputs(self.setting, self.engine, self.folder, carried, anew=saved is None)
        if saved is None:
            server = self.setting.server(0)
            state = drive(method.setup(state, server), state, self.engine, server, carried)
            if carried.kept:
                said = first_reason(carried.dropped)
                raise RunStopped(f"no client answered the preliminary exchange ({said})")
            carried.clients.clear()  # its cost is the first round's, its answers are not
            told = server.logged
        else:
            state = saved.state
            self.choice.best = saved.best
            self.engine.states.update(saved.client_states)
        self.tell_start(done)
        self.warn([*self.remarks, *never_validated(self.setting)])
        for number in range(done + 1, experiment.rounds + 1):
            if not self.affords(number):
                self.warn([f"the privacy budget is spent after round {number - 1}"])
                break
            if self.choice.why_over:
                break
            # 3. The exchanges of the round, then the test, then everything that watches.
            began = time.perf_counter()
            server = self.setting.server(number)
            server.logged.update(told)
            ledger, carried, told = carried, Ledger(), {}
            ledger.hides = self.hides
            state = drive(method.round(state, server), state, self.engine, server, ledger)
            self.complain(number, ledger, history)
            record = self.record(number, state, server, ledger, began)
            history.append(record)
            for callback in self.callbacks:
                callback.on_round(copy.deepcopy(record))  # what it does to it is its own affair
            last = self.is_last(number) or "stopped" in record
            snapshot = self.snapshot(number, state, record, last)
            for callback in self.callbacks:
                callback.on_snapshot(snapshot)
            for callback in self.callbacks:
                callback.on_saved(snapshot)
        # 4. What is shipped.
        return self.end(state, history)

    def snapshot(self, number: int, state: Any, record: Record, last: bool) -> Snapshot:
        """Return what the next round starts from; clients' states are shown, not copied."""
        states = self.engine.states
        return Snapshot(
            number,
            state,
            MappingProxyType(states),
            record,
            self.choice.best,
            last,
            changed=states.news(),
        )

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
            facts = {
                "threads": experiment.threads,
                "device": str(self.setting.device),
                "together": self.together,
            }
            split = self.setting.split.to_json(self.setting.dataset.client_names)
            digests = self.setting.digests()
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
            clients=self.setting.client_names,
            features=self.setting.features,
        )
        for callback in self.callbacks:
            callback.on_start(info)

    def complain(self, number: int, ledger: Ledger, history: Sequence[Record]) -> None:
        """Warn of what went wrong in a round, and stop if too little went right."""
        messages = [
            f"round {number}: {self.mention(d.client)} is left out: {d.reason}"
            for d in ledger.dropped
        ]
        messages += [f"round {number}: {self.mention(d.client)} {d.reason}" for d in ledger.remarks]
        if ledger.kept:
            messages.append(f"round {number}: no valid update, the model stays as it was")
        self.warn(messages)
        least = self.setting.min_clients
        # A round in which a method asks nobody is not short of anybody.
        if ledger.traffic and len(ledger.clients) < least:
            raise RunStopped(
                f"round {number} has {len(ledger.clients)} valid updates, "
                f"fewer than min_clients = {least}"
            )
        # Read from the records, so that a resumed run does not forget.
        before = [not number_answered(record) and bool(record["dropped"]) for record in history]
        stop_if_empty([*before, ledger.kept], self.is_last(number), ledger)

    def is_last(self, number: int) -> bool:
        """Whether no round comes after this one."""
        return number == self.setting.experiment.rounds or not self.affords(number + 1)

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
        due = self.is_last(number) or number % self.setting.experiment.eval_every == 0
        trial = self.weighed(state, server) if due else None
        stopped = self.stopped(number)
        if trial is not None:
            # What comes after training is paid when it is over; before, validation needs it.
            over = bool(stopped) or self.is_last(number)
            pay(trial.after, ledger if over else None, trial.validation)
        traffic = ledger.traffic.values()
        return {
            "round": number,
            **(untested() if trial is None else trial.found),
            **({"validation": trial.validation} if trial and trial.validation else {}),
            "bytes_up": sum(up for _, up in traffic),
            "bytes_down": sum(down for down, _ in traffic),
            "seconds": time.perf_counter() - began,
            **self.who(ledger),
            "method": dict(server.logged),
            **({} if self.budget is None else {"privacy": self.budget.record()}),
            **({"stopped": stopped} if stopped else {}),
        }

    def weighed(self, state: Any, server: Server) -> Trial:
        """Score what would be shipped: validation decides, and the test set is asked after it."""
        experiment, number = self.setting.experiment, server.round
        trial = self.scoring.trial(state, server)
        if trial.validation is not None:
            scores, name = trial.validation, experiment.score
            if scores[name] is None:
                self.warn(
                    [f"round {number}: validation gives no '{name}', and the round cannot be kept"]
                )
            self.choice.look(number, scores, trial.model)
            if self.choice.best is not None and experiment.keep == "best":
                scores["kept"] = self.choice.best.round
        if experiment.test == "every" or (experiment.test == "best" and self.ships(number)):
            trial = self.scoring.tested(trial, state, server)
        self.scored = trial
        return trial

    def ships(self, number: int) -> bool:
        """Whether the model of a round may be shipped: it is the best so far, or the last."""
        return self.choice.is_best(number) or self.is_last(number) or bool(self.stopped(number))

    def who(self, ledger: Ledger) -> dict[str, Any]:
        """Return who took part, who was left out, and each one's traffic, if that may be known."""
        if self.hides:
            dropped = [{"reason": d.reason} for d in ledger.dropped]
            return {"clients": None, "answered": len(ledger.clients), "dropped": dropped}
        return {
            "clients": sorted(ledger.clients),
            "dropped": [
                {"client": d.client, **self.named(d.client), "reason": d.reason}
                for d in ledger.dropped
            ],
            "traffic": {str(client): ledger.traffic[client] for client in sorted(ledger.traffic)},
        }

    def mention(self, client: ClientId) -> str:
        """Return a client for a warning; where nobody may know who was asked, without its name."""
        return "a client" if self.hides else f"client {self.scoring.name(client)}"

    @property
    def hides(self) -> bool:
        """Whether nobody may know who was asked."""
        return self.budget is not None and self.budget.hides

    def named(self, client: ClientId) -> dict[str, str]:
        """Return a client's name for a record, where it is not its number."""
        name = self.scoring.name(client)
        return {} if name == str(client) else {"name": name}

    def stopped(self, number: int) -> str:
        """Return why no round comes after this one, in a clause; nothing if one does or should."""
        if number == self.setting.experiment.rounds:
            return ""
        return self.choice.why_over if self.affords(number + 1) else "the privacy budget is spent"

    def end(self, state: Any, history: list[dict[str, Any]]) -> Result:
        """Ship the model and tell everyone."""
        server = self.setting.server(history[-1]["round"])
        # A run that was killed after its last round has not tested in this process.
        last = None if self.scored is None else self.scored.model
        kept = self.choice.kept
        shipped = kept or last or self.scoring.shippable(state, server, Ledger())
        loaded = load_tested(shipped, self.setting.model, self.setting.base)
        network, tensors = as_shipped(loaded, shipped)
        if self.folder is not None:
            known = self.scored if kept is None and network is loaded else None
            merged = shipped if network is loaded else tensors
            if self.setting.experiment.test == "none":
                remove(self.folder.confusion)  # of the model before a run went on
            else:
                evaluation = (known and known.evaluation) or self.engine.evaluate(merged)
                self.folder.keep_confusion(self.setting.dataset.classes, evaluation.confusion)
            self.folder.finish(tensors)
        for callback in self.callbacks:
            callback.on_end(shipped_record(history), tensors)
        path = None if self.folder is None else self.folder.path
        model = predictor_of(self.setting, network)
        return Result(history, tensors, network.module, model, state, path)


def number_answered(record: Record) -> int:
    """Return how many clients took part in a round."""
    return int(record["answered"]) if record["clients"] is None else len(record["clients"])


def pay(after: Ledger, ledger: Ledger | None, validation: dict[str, Any] | None) -> None:
    """Count what came after training: as the round's own traffic, or as that of its validation."""
    for client, (down, up) in after.traffic.items():
        if ledger is not None:
            ledger.count(client, 0, down)
            ledger.count(client, 1, up)
        elif validation is not None:
            validation["bytes_down"] += down
            validation["bytes_up"] += up
