"""Other executors for a run than the usual ones: separate, recording, lossy, spoiling."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from fedtail.callbacks import Callback, Record
from fedtail.engines import Embedded
from fedtail.engines.executor import Done, Executor, Job, Serial, attempt
from fedtail.engines.runtime import Runtime, numerics
from fedtail.engines.wire import pack, unpack
from fedtail.experiment import Experiment
from fedtail.loop import Loop
from fedtail.metrics import Evaluation
from fedtail.protocol import Tensors
from fedtail.result import Result
from fedtail.setting import prepare
from fedtail.tensors import pack_tensors, unpack_tensors
from fedtail.testing.federation import NUM_CLASSES
from fedtail.totals import Sums


def run_with(
    chosen: Experiment,
    executor: Callable[[Runtime], Executor],
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Run an experiment with another executor than the usual one."""
    setting = prepare(chosen)
    engine = Embedded(setting.runtime(), server_side=chosen.robust_side)
    engine.executor = executor(setting.runtime())
    with numerics(chosen.threads):  # as `run` does: more threads give other bits
        return Loop(setting, engine, None, callbacks).run(False)


class Isolated:
    """What a pool of two workers does, without the processes.

    Each job is done on one of two separate copies of the runtime, last job first, and everything
    crosses the wire as bytes. A method that leaves something behind in the model, on itself or in a
    payload gives other bits here than in one process.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtimes = [_copied(runtime), _copied(runtime)]

    def perform(self, jobs: Sequence[Job], total: Sums | None = None) -> list[Done]:
        """Do the jobs in reverse, by turns on the two copies."""
        done = [self._one(i, job) for i, job in reversed(list(enumerate(jobs)))]
        return done[::-1]

    def _one(self, number: int, job: Job) -> Done:
        task = type(job.task)(job.task.client, job.task.action, unpack(pack(job.task.payload)))
        state = unpack_tensors(pack_tensors(job.state), "a state")
        done = attempt(self.runtimes[number % 2], Job(task, state, job.clock))
        if done.payload is None:
            return done
        kept = unpack_tensors(pack_tensors(done.state), "a state")
        return Done(unpack(pack(done.payload)), kept)

    def evaluate(self, tensors: Tensors) -> Evaluation:
        """Test on the second copy."""
        runtime = self.runtimes[1]
        tested = runtime.load_tested(unpack_tensors(pack_tensors(tensors), "a model"))
        parts = [runtime.evaluate(tested, *part) for part in runtime.test_ranges()]
        return sum(parts, start=Evaluation.empty(NUM_CLASSES))

    def close(self) -> None:
        """Nothing was started."""


def _copied(runtime: Runtime) -> Runtime:
    method, base, model = copy.deepcopy((runtime.method, runtime.base, runtime.model))
    return Runtime(runtime.federation, method, base, model, runtime.seed, runtime.device)


class Recorder(Serial):
    """Keeps every message that passes."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self.waves: list[list[tuple[Job, Done]]] = []

    def perform(self, jobs: Sequence[Job], total: Sums | None = None) -> list[Done]:
        """Do the jobs and keep them with what came of each."""
        done = list(super().perform(jobs))
        self.waves.append(list(zip(jobs, done, strict=True)))
        return done


@dataclass(frozen=True)
class Spoiler(Serial):
    """Spoils what comes of some of the jobs.

    Attributes
    ----------
    which
        The jobs that are spoiled; by default those of client 0.
    """

    spoil: Callable[[Done], Done] = field(default=lambda done: done)
    which: Callable[[Job], bool] = field(default=lambda job: job.task.client == 0)

    def perform(self, jobs: Sequence[Job], total: Sums | None = None) -> list[Done]:
        """Do the jobs, and spoil."""
        done = list(super().perform(jobs))
        return [self.spoil(d) if self.which(job) else d for job, d in zip(jobs, done, strict=True)]


def lost(done: Done) -> Done:
    """Lose an answer."""
    return Done(None, done.state, "lost")


def with_nan(done: Done) -> Done:
    """Put NaN into every float that is sent; if none is, lose the answer."""
    if done.payload is None:
        return done
    tensors = {
        n: torch.full_like(t, torch.nan) if t.is_floating_point() else t
        for n, t in done.payload.tensors.items()
    }
    if not any(t.is_floating_point() and t.numel() for t in tensors.values()):
        return lost(done)
    return replace(done, payload=replace(done.payload, tensors=tensors))


def with_more(done: Done) -> Done:
    """Add a tensor that no method declares."""
    if done.payload is None:
        return done
    tensors = {**done.payload.tensors, "nobody/asked": torch.ones(1)}
    return replace(done, payload=replace(done.payload, tensors=tensors))


class Interrupted(Exception):
    """What ends a run on purpose."""


@dataclass
class InterruptAfter(Callback):
    """Interrupts a run after a round was saved; after the last, before its end."""

    round: int

    def on_round(self, record: Record) -> None:
        """Stop in the round that follows."""
        if record["round"] == self.round + 1:
            raise Interrupted

    def on_end(self, record: Record, model: Any) -> None:
        """Stop at the end, if nothing did before."""
        raise Interrupted


def global_streams() -> tuple[str, ...]:
    """Return where the user's own random streams stand: Python's, NumPy's and torch's."""
    legacy = np.random.mtrand._rand.get_state(legacy=False)
    return str(random.getstate()), str(legacy), str(torch.get_rng_state().tolist())
