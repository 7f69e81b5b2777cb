"""Who does the tasks of one wave: this process, or a pool of worker processes.

Workers are spawned once and see the data in shared memory. Tasks go to whoever is free: what a task
gives does not depend on who did it, so neither does the run.
"""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from torch import Tensor
from torch.multiprocessing import get_context

from fedtail.engines.wire import pack, pack_tensors, unpack, unpack_tensors
from fedtail.engines.workplace import Clock, Workplace, numerics
from fedtail.errors import FedtailError, RunStopped
from fedtail.metrics import Evaluation
from fedtail.plugins import load_plugins
from fedtail.protocol import Payload, Task, Tensors

State = dict[str, Tensor]


@dataclass(frozen=True)
class Job:
    """A task, the state its client had, and when it happens."""

    task: Task
    state: State
    clock: Clock


@dataclass(frozen=True)
class Done:
    """What came of a job: an answer with the client's new state, or the reason why not."""

    payload: Payload | None
    state: State
    reason: str = ""


class Crew(Protocol):
    """Does jobs and tests models."""

    def perform(self, jobs: Sequence[Job]) -> list[Done]:
        """Do the jobs; the results are in the order of the jobs."""

    def evaluate(self, tensors: Tensors) -> Evaluation:
        """Test a model on the whole test set."""

    def close(self) -> None:
        """Stop what was started."""


def attempt(place: Workplace, job: Job) -> Done:
    """Do one job; whatever the client half raises becomes a reason."""
    state = dict(job.state)
    try:
        return Done(place.perform(job.task, state, job.clock), state)
    except Exception as error:  # a client may fail in any way, and the round goes on
        return Done(None, job.state, f"{type(error).__name__}: {error}")


@dataclass(frozen=True)
class Solo:
    """One process does everything itself."""

    place: Workplace

    def perform(self, jobs: Sequence[Job]) -> list[Done]:
        """Do the jobs one after the other."""
        return [attempt(self.place, job) for job in jobs]

    def evaluate(self, tensors: Tensors) -> Evaluation:
        """Test a model on the whole test set."""
        tested = self.place.load_tested(tensors)
        parts = [self.place.evaluate(tested, *part) for part in self.place.test_ranges()]
        return sum(parts, start=Evaluation.empty(self.place.federation.num_classes))

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
    """What a worker is told: a kind, a broadcast that several orders share, and the rest."""

    kind: str
    broadcast: int
    data: bytes
    rest: tuple[Any, ...]


class Pool:
    """Worker processes with one thread and one resident model each."""

    def __init__(
        self, place: Workplace, workers: int, threads: int, plugins: Sequence[str]
    ) -> None:
        self.place = place
        self._broadcasts = 0
        context = get_context("spawn")  # torch's: its pipes pass tensors in shared memory
        self._workers: list[Worker] = []
        for _ in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=serve, args=(theirs, list(plugins), threads), daemon=True
            )
            process.start()
            theirs.close()
            self._workers.append(Worker(process, ours))
        try:
            self._hand_over(place)
        except BaseException:
            self.close()
            raise

    def _hand_over(self, place: Workplace) -> None:
        """Send the place to every worker, and hear from each that it arrived."""
        try:
            for worker in self._workers:
                worker.pipe.send(place)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise _unsendable(str(error)) from None
        for worker in self._workers:
            reason = self._receive(worker)
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
            orders.append(Order("task", *packed[id(payload)], rest))
        return [
            Done(unpack(answer[1]), unpack_tensors(answer[2], "a client's state"))
            if answer[0] == "done"
            else Done(None, job.state, answer[1])
            for job, answer in zip(jobs, self._distribute(orders), strict=True)
        ]

    def evaluate(self, tensors: Tensors) -> Evaluation:
        """Test a model, each range of the test set by whichever worker is free."""
        number, data = self._next(), pack_tensors(tensors)
        orders = [Order("test", number, data, part) for part in self.place.test_ranges()]
        parts: list[Evaluation] = self._distribute(orders)
        return sum(parts, start=Evaluation.empty(self.place.federation.num_classes))

    def close(self) -> None:
        """End the worker processes."""
        for worker in self._workers:
            worker.pipe.close()
        for worker in self._workers:
            worker.process.join(timeout=5)
            worker.process.kill()

    def _next(self) -> int:
        self._broadcasts += 1
        return self._broadcasts

    def _distribute(self, orders: Sequence[Order]) -> list[Any]:
        waiting = deque(enumerate(orders))
        free = list(self._workers)
        busy: dict[Any, tuple[int, Worker]] = {}
        answers: list[Any] = [None] * len(orders)
        while waiting or busy:
            while waiting and free:
                number, order = waiting.popleft()
                worker = free.pop()
                self._send(worker, order)
                busy[worker.pipe] = (number, worker)
            for pipe in wait(list(busy)):
                number, worker = busy.pop(pipe)
                answers[number] = self._receive(worker)
                free.append(worker)
        return answers

    def _send(self, worker: Worker, order: Order) -> None:
        data = order.data if worker.holds != order.broadcast else None
        worker.holds = order.broadcast
        try:
            worker.pipe.send((order.kind, data, order.rest))
        except (BrokenPipeError, OSError):
            raise _died(worker) from None

    def _receive(self, worker: Worker) -> Any:
        try:
            return worker.pipe.recv()
        except (EOFError, OSError):
            raise _died(worker) from None


def _unsendable(reason: str) -> FedtailError:
    return FedtailError(
        f"the model, data or method cannot be sent to worker processes ({reason}): define its "
        "classes in a module that can be imported, or run with workers = 0"
    )


def _died(worker: Worker) -> RunStopped:
    worker.process.join(timeout=5)
    code = worker.process.exitcode
    return RunStopped(
        f"a worker process ended with exit code {code} (-9 often means that memory ran out: "
        "use fewer --workers)"
    )


def serve(pipe: Connection, plugins: list[str], threads: int) -> None:
    """Run in the worker process: take orders until the pipe is closed."""
    try:
        place = _arrive(pipe, plugins)
        with numerics(threads):
            for answer in _answers(place, pipe):
                pipe.send(answer)
    except (EOFError, KeyboardInterrupt, BrokenPipeError):
        return


def _arrive(pipe: Connection, plugins: list[str]) -> Workplace:
    """Receive the place and say that it arrived, or why not."""
    try:
        load_plugins(plugins)
        place: Workplace = pipe.recv()
    except (EOFError, KeyboardInterrupt):
        raise
    except Exception as error:  # importing a user's module may fail in any way
        pipe.send(f"{type(error).__name__}: {error}")
        raise EOFError from None
    # The pipe shares all tensors between processes: right for data, wrong for the model.
    place.base, place.model = copy.deepcopy((place.base, place.model))
    pipe.send("")
    return place


def _answers(place: Workplace, pipe: Connection) -> Iterator[Any]:
    payload, tested = Payload(), place.model
    while True:
        kind, data, rest = pipe.recv()
        if kind == "task":
            payload = payload if data is None else unpack(data)
            client, action, clock, state = rest
            task = Task(client, action, payload)
            done = attempt(place, Job(task, unpack_tensors(state, "a client's state"), clock))
            if done.payload is None:
                yield ("failed", done.reason)
            else:
                yield ("done", pack(done.payload), pack_tensors(done.state))
        else:
            if data is not None:
                tested = place.load_tested(unpack_tensors(data, "a tested model"))
            yield place.evaluate(tested, *rest)
