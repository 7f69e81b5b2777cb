"""Who does the tasks of one wave: this process, or a pool of worker processes.

Workers are spawned once and see the data in shared memory. Tasks go to whoever is free: what a task
gives does not depend on who did it, so neither does the run. For the same reason the task of a
worker that died can be done again by another.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import multiprocessing
import pickle
import time
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from torch import Tensor
from torch.multiprocessing import get_context

from fedtail.engines.runtime import Clock, Runtime, Withheld, numerics
from fedtail.engines.wire import pack, pack_tensors, unpack, unpack_tensors
from fedtail.errors import ClientFailed, FedtailError, RunStopped, blame, blaming
from fedtail.metrics import Evaluation
from fedtail.plugins import first_line, first_line_and_place, load_plugins
from fedtail.protocol import Payload, Task, Tensors
from fedtail.training.warm_up import warm_up

State = dict[str, Tensor]
logger = logging.getLogger("fedtail")

RESTARTS = 1
"""How many workers of a run are started again; if one more dies, more would."""
LEAVE = 5.0
"""Seconds that workers have to end by themselves."""


@dataclass(frozen=True)
class Job:
    """A task, the state its client had, and when it happens."""

    task: Task
    state: State
    clock: Clock

    def __str__(self) -> str:
        return f"client {self.task.client}, action '{self.task.action}', round {self.clock.round}"


@dataclass(frozen=True)
class Done:
    """What came of a job: an answer with the client's new state, or the reason why not.

    Attributes
    ----------
    error
        What the client half raised, if that is the reason.
    """

    payload: Payload | None
    state: State
    reason: str = ""
    error: Exception | None = None


class Executor(Protocol):
    """Does jobs and tests models."""

    def perform(self, jobs: Sequence[Job]) -> Iterable[Done]:
        """Do the jobs; the results are in the order of the jobs, each as soon as it is there."""

    def evaluate(self, tensors: Tensors) -> Evaluation:
        """Test a model on the whole test set."""

    def close(self) -> None:
        """Stop what was started."""


def attempt(runtime: Runtime, job: Job) -> Done:
    """Do one job; whatever the client half raises becomes a reason."""
    state = dict(job.state)
    try:
        return Done(runtime.perform(job.task, state, job.clock), state)
    except Withheld as error:
        return Done(None, job.state, str(error))
    except Exception as error:  # a client may fail in any way; who asked decides what it means
        blame(error, str(job))
        return Done(None, job.state, first_line_and_place(error), error)


@dataclass(frozen=True)
class Serial:
    """One process does everything itself.

    Attributes
    ----------
    drop
        Go on when a client half raises, instead of raising it here.
    """

    runtime: Runtime
    drop: bool = field(default=False, kw_only=True)

    def perform(self, jobs: Sequence[Job]) -> Iterable[Done]:
        """Do the jobs one after the other; one answer at a time is in memory."""
        return map(self._one, jobs)

    def _one(self, job: Job) -> Done:
        done = attempt(self.runtime, job)
        if isinstance(done.error, StopIteration) and not self.drop:
            # Who asks for one answer after the other would take it for the end of them.
            with blaming(str(job)):
                raise RuntimeError("a client half raised StopIteration") from done.error
        if done.error is not None and not self.drop:
            raise done.error
        return done

    def evaluate(self, tensors: Tensors) -> Evaluation:
        """Test a model on the whole test set."""
        tested = self.runtime.load_tested(tensors)
        parts = [self.runtime.evaluate(tested, *part) for part in self.runtime.test_ranges()]
        return sum(parts, start=Evaluation.empty(self.runtime.federation.num_classes))

    def close(self) -> None:
        """Nothing was started."""


@dataclass
class Worker:
    """The parent's end of one worker process."""

    process: multiprocessing.process.BaseProcess
    pipe: Connection
    holds: int = -1  # which broadcast it has already been sent


@dataclass(frozen=True)
class Order:
    """What a worker is told: a kind, a broadcast that several orders share, and the rest.

    Attributes
    ----------
    what
        What it is about, for people.
    """

    kind: str
    broadcast: int
    data: bytes
    rest: tuple[Any, ...]
    what: str


@dataclass(frozen=True)
class Failure:
    """What a worker says of an order that raised: one line, a sentence if it is one, all of it."""

    reason: str
    sentence: str
    trace: str

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """Return all that another process is told of an error; not all of them can be sent."""
        sentence = str(error) if isinstance(error, FedtailError) else ""
        trace = "".join(traceback.format_exception(error)).rstrip()
        return cls(first_line_and_place(error), sentence, trace)

    def error(self, what: str) -> Exception:
        """Return what the parent raises in its runtime."""
        said = self.sentence
        error = FedtailError(said) if said else ClientFailed(f"{self.reason}: {what}")
        error.add_note(f"In a worker process:\n{self.trace}")
        return error


@dataclass(frozen=True)
class Errand:
    """An order that a worker is doing, its place among all, and until when it may take."""

    number: int
    order: Order
    worker: Worker
    until: float


class Pool:
    """Worker processes with one thread and one resident model each.

    Parameters
    ----------
    runtime
        The data, the method and the model.
    workers, threads
        How many processes, and how many threads each has.
    plugins
        What they import before they start.
    drop
        Go on when a client half raises, instead of raising it here.
    seconds
        How long an order may take; a worker that takes longer is ended, and counts as dead.
    """

    def __init__(
        self,
        runtime: Runtime,
        workers: int,
        threads: int,
        plugins: Sequence[str],
        drop: bool = False,
        seconds: float = math.inf,
    ) -> None:
        self.runtime = runtime
        self.drop = drop
        self.seconds = seconds
        self._context = get_context("spawn")  # torch's: its pipes pass tensors in shared memory
        self._told = (list(plugins), threads)
        self._broadcasts = 0
        self._restarts = 0
        self._workers: list[Worker] = []
        try:
            self._hire(workers)
        except BaseException:
            self.close()
            raise

    def _hire(self, count: int) -> None:
        """Start workers, send each the runtime, and hear that it arrived."""
        new: list[Worker] = []
        for _ in range(count):
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=serve, args=(theirs, *self._told), daemon=True)
            process.start()
            theirs.close()
            new.append(Worker(process, ours))
            self._workers.append(new[-1])
        try:
            for worker in new:
                worker.pipe.send(self.runtime)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise _unsendable(str(error)) from None
        except ConnectionError:
            pass  # one that is dead is found out when it does not answer
        for worker in new:
            try:
                reason = worker.pipe.recv()
            except (EOFError, OSError):
                raise RunStopped(f"a worker process {_ended(worker)}") from None
            if reason:
                raise _unsendable(reason)

    def perform(self, jobs: Sequence[Job]) -> list[Done]:
        """Do the jobs, each by whichever worker is free."""
        packed: dict[int, tuple[int, bytes]] = {}
        orders = []
        for job in jobs:
            payload = job.task.payload
            if id(payload) not in packed:
                packed[id(payload)] = (self._next(), pack(payload))
            rest = (job.task.client, job.task.action, job.clock, pack_tensors(job.state))
            orders.append(Order("task", *packed[id(payload)], rest, str(job)))
        return [
            self._done(job, answer)
            for job, answer in zip(jobs, self._distribute(orders), strict=True)
        ]

    def _done(self, job: Job, answer: Any) -> Done:
        if isinstance(answer, Failure):
            return Done(None, job.state, answer.reason, answer.error(str(job)))
        payload, rest = answer
        if payload is None:
            return Done(None, job.state, rest)
        return Done(unpack(payload), unpack_tensors(rest, "a client's state"))

    def evaluate(self, tensors: Tensors) -> Evaluation:
        """Test a model, each range of the test set by whichever worker is free."""
        number, data = self._next(), pack_tensors(tensors)
        orders = [Order("test", number, data, p, "a test") for p in self.runtime.test_ranges()]
        parts: list[Evaluation] = self._distribute(orders)
        return sum(parts, start=Evaluation.empty(self.runtime.federation.num_classes))

    def close(self) -> None:
        """End the worker processes."""
        for worker in self._workers:
            worker.pipe.close()
        until = time.monotonic() + LEAVE
        for worker in self._workers:
            worker.process.join(timeout=max(0.0, until - time.monotonic()))
            worker.process.kill()

    def _next(self) -> int:
        self._broadcasts += 1
        return self._broadcasts

    def _distribute(self, orders: Sequence[Order]) -> list[Any]:
        waiting = deque(enumerate(orders))
        free = list(self._workers)
        busy: dict[Any, Errand] = {}
        answers: list[Any] = [None] * len(orders)
        while waiting or busy:
            while waiting and free:
                number, order = waiting.popleft()
                worker = free.pop()
                self._send(worker, order)
                busy[worker.pipe] = Errand(number, order, worker, time.monotonic() + self.seconds)
            for errand in self._over(busy):
                del busy[errand.worker.pipe]
                try:
                    answer = errand.worker.pipe.recv()
                except (EOFError, OSError):
                    free.append(self._replace(errand))
                    waiting.appendleft((errand.number, errand.order))
                    continue
                if isinstance(answer, Failure) and not (self.drop and errand.order.kind == "task"):
                    raise answer.error(errand.order.what)
                answers[errand.number] = answer
                free.append(errand.worker)
        return answers

    def _send(self, worker: Worker, order: Order) -> None:
        data = order.data if worker.holds != order.broadcast else None
        worker.holds = order.broadcast
        with contextlib.suppress(ConnectionError):  # as above
            worker.pipe.send((order.kind, data, order.rest))

    def _over(self, busy: Mapping[Any, Errand]) -> list[Errand]:
        """Wait for an answer or a death, at most until the first errand has taken too long."""
        first = min(errand.until for errand in busy.values())
        ready = wait(list(busy), None if first == math.inf else max(0.0, first - time.monotonic()))
        late = [pipe for pipe, e in busy.items() if e.until <= time.monotonic()]
        for pipe in late:
            if pipe not in ready:
                busy[pipe].worker.process.kill()
        return [busy[pipe] for pipe in {*ready, *late}]

    def _replace(self, errand: Errand) -> Worker:
        """Start a worker in the place of one that died, or stop the run."""
        dead = errand.worker
        late = time.monotonic() >= errand.until
        ended = _ended(dead)
        why = f"took longer than task_seconds = {self.seconds:g}" if late else ended
        what = f"a worker process {why}: {errand.order.what}"
        if self._restarts == RESTARTS:
            raise RunStopped(f"{what}; one was started again before")
        self._restarts += 1
        logger.warning("%s; it is started again, and does this once more", what)
        dead.pipe.close()
        self._workers.remove(dead)
        self._hire(1)
        return self._workers[-1]


def _unsendable(reason: str) -> FedtailError:
    return FedtailError(
        f"the model, data or method cannot be sent to worker processes ({reason}): define its "
        "classes in a module that can be imported, or run with workers = 0"
    )


def _ended(worker: Worker) -> str:
    worker.process.join(timeout=LEAVE)
    code = worker.process.exitcode
    return f"ended with exit code {code} (-9 often means that memory ran out: use fewer --workers)"


def serve(pipe: Connection, plugins: list[str], threads: int) -> None:
    """Run in the worker process: take orders until the pipe is closed."""
    try:
        runtime = _arrive(pipe, plugins)
        with numerics(threads):
            for answer in _answers(runtime, pipe):
                pipe.send(answer)
    except (EOFError, KeyboardInterrupt, ConnectionError):
        return  # who gave the orders has ended, perhaps by a kill


def _arrive(pipe: Connection, plugins: list[str]) -> Runtime:
    """Receive the runtime and say that it arrived, or why not."""
    try:
        load_plugins(plugins)
        runtime: Runtime = pipe.recv()
    except (EOFError, KeyboardInterrupt):
        raise
    except Exception as error:  # importing a user's module may fail in any way
        pipe.send(f"{type(error).__name__}: {error}")
        raise EOFError from None
    # The pipe shares all tensors between processes: right for data, wrong for the model.
    runtime.base, runtime.model = copy.deepcopy((runtime.base, runtime.model))
    warm_up(runtime.device)
    pipe.send("")
    return runtime


def _answers(runtime: Runtime, pipe: Connection) -> Iterator[Any]:
    payload, tested = Payload(), runtime.model
    while True:
        kind, data, rest = pipe.recv()
        if kind == "task":
            payload = payload if data is None else unpack(data)
            client, action, clock, state = rest
            task = Task(client, action, payload)
            done = attempt(runtime, Job(task, unpack_tensors(state, "a client's state"), clock))
            yield _packed(done)
        else:
            try:
                if data is not None:
                    tested = runtime.load_tested(unpack_tensors(data, "a tested model"))
                answer: Any = runtime.evaluate(tested, *rest)
            except Exception as error:  # a user's network may fail in any way
                answer = Failure.of(error)
            yield answer


def _packed(done: Done) -> Any:
    """Return what of a job's result goes through the pipe."""
    if done.error is not None:
        return Failure.of(done.error)
    if done.payload is None:
        return None, done.reason
    try:
        return pack(done.payload), pack_tensors(done.state)
    except Exception as error:  # a sparse tensor, a scalar that is none: the engine refuses them
        return None, f"sent what no message can carry ({first_line(error)})"
