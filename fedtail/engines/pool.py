"""A pool of worker processes.

Workers are kept from run to run (`fedtail.processes`) and see the data in shared memory. Tasks go
to whoever is free, in blocks whose answers a worker adds up itself: through the pipe goes one sum a
block, not a model a client. What a task gives does not depend on who did it, so neither does the
run. For the same reason the block of a worker that died can be done again by another.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import pickle
import time
import traceback
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from multiprocessing.connection import Connection, wait
from typing import Any

from fedtail.engines.executor import Arrival, Done, Intake, Job, State, attempt, done_in_block
from fedtail.engines.lazy_imports import import_lazily_used
from fedtail.engines.pipes import (
    Shared,
    incoming,
    looks,
    receive,
    send,
    send_tensors,
    share,
    shared,
)
from fedtail.engines.runtime import Clock, Runtime, numerics
from fedtail.engines.together import blocks, done_together, in_blocks
from fedtail.errors import ClientFailed, FedtailError, RunStopped
from fedtail.metrics import Evaluation
from fedtail.plugins import first_line, first_line_and_place, load_plugins
from fedtail.processes import LEAVE, Hand, dismiss, hire, keep
from fedtail.protocol import ClientId, Payload, Task, Tensors
from fedtail.reduce import union, within_frames
from fedtail.sums import Frames
from fedtail.totals import Sums

logger = logging.getLogger("fedtail")

RESTARTS = 1
"""How many workers of a run are started again; if one more dies, more would."""
BLOCKS_EACH = 4
"""How many blocks of a wave a worker does: more level out slow clients, fewer carry fewer sums."""


@dataclass(eq=False)
class Worker:
    """A process that works for this run."""

    hand: Hand
    holds: int = -1  # which broadcast it has already been sent
    free: bool = False  # has arrived, and has nothing to do

    @property
    def pipe(self) -> Connection:
        """The way to it."""
        return self.hand.pipe


@dataclass(frozen=True)
class Order:
    """What a worker is told: a kind, a broadcast that several orders share, and the rest.

    Attributes
    ----------
    what
        What it is about, for people.
    jobs
        How many jobs it is, each of which has its own time.
    """

    kind: str
    broadcast: int
    data: Payload | Tensors
    rest: tuple[Any, ...]
    what: str
    jobs: int = 1


@dataclass(frozen=True)
class Failure:
    """What a worker says of what raised: a line, a sentence if it is one, all of it, and where."""

    reason: str
    sentence: str
    trace: str
    what: str

    @classmethod
    def of(cls, error: Exception, what: str) -> Failure:
        """Return all that another process is told of an error; not all of them can be sent."""
        sentence = str(error) if isinstance(error, FedtailError) else ""
        trace = "".join(traceback.format_exception(error)).rstrip()
        return cls(first_line_and_place(error), sentence, trace, what)

    def error(self) -> Exception:
        """Return what the parent raises in its place."""
        said = self.sentence
        error = FedtailError(said) if said else ClientFailed(f"{self.reason}: {self.what}")
        error.add_note(f"In a worker process:\n{self.trace}")
        return error


@dataclass(frozen=True)
class Assignment:
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
    main
        Whether the main script is imported there (see `hire`).
    """

    def __init__(
        self,
        runtime: Runtime,
        workers: int,
        threads: int,
        plugins: Sequence[str],
        drop: bool = False,
        seconds: float = math.inf,
        main: bool = True,
    ) -> None:
        self.runtime = runtime
        self.drop = drop
        self.seconds = seconds
        self._main = main
        self._told = (list(plugins), threads, drop)
        self._sent: Shared | None = None  # kept for a worker that is started later
        self._broadcasts = 0
        self._restarts = 0
        self._workers: list[Worker] = []
        try:
            self._hire(workers)
        except BaseException:
            self.close()
            raise

    @property
    def workers(self) -> int:
        """How many processes there are."""
        return len(self._workers)

    def _hire(self, count: int) -> None:
        """Take processes, send each the runtime, and hear that it arrived."""
        new = [Worker(hand) for hand in hire(count, self._main)]
        self._workers += new
        try:
            constants: Any  # torch's stub has no type for `share_memory_`
            for constants in (self.runtime.federation.mean, self.runtime.federation.std):
                constants.share_memory_()  # `standardise` writes them when clients have told
            self._sent = self._sent or share(self.runtime)
            for worker in new:
                worker.hand.ready()
                worker.hand.begin(work_orders, *self._told)
                worker.pipe.send(self._sent)
        except (pickle.PicklingError, AttributeError, TypeError, RuntimeError) as error:
            raise _unsendable(str(error).partition("\n")[0]) from None
        except (EOFError, ConnectionError):
            pass  # one that is dead is found out when it does not answer
        for worker in new:
            try:
                reason = worker.pipe.recv()
            except (EOFError, OSError):
                raise RunStopped(f"a worker process {_ended(worker)}") from None
            if reason:
                raise _unsendable(reason)
            worker.free = True

    def perform(self, jobs: Sequence[Job], total: Sums | None = None) -> list[Done]:
        """Do the jobs, each block of them by whichever worker is free."""
        numbers: dict[int, int] = {}
        orders, blocks = [], list(self._blocks(jobs, total is not None))
        for block in blocks:
            payload = block[0].task.payload
            number = numbers.setdefault(id(payload), self._broadcasts + 1)
            self._broadcasts = max(self._broadcasts, number)
            told = [(job.task.client, job.task.action, job.clock, job.state) for job in block]
            # The sum of one is twice as large as itself.
            frames = None if total is None or len(block) == 1 else total.frames
            rest, what = (told, frames, in_blocks(self.runtime, block[0])), _names(block)
            orders.append(Order("task", number, payload, rest, what, len(block)))
        answers = self._distribute(orders, total)
        return [
            self._done(job, receipt)
            for block, answer in zip(blocks, answers, strict=True)
            for job, receipt in zip(block, answer, strict=True)
        ]

    def _blocks(self, jobs: Sequence[Job], added: bool) -> Iterator[list[Job]]:
        """Cut jobs into blocks of one broadcast; answers that stay apart come one by one."""
        size = math.ceil(len(jobs) / (BLOCKS_EACH * len(self._workers))) if added else 1
        for _, same in groupby(jobs, key=lambda job: (job.task.action, id(job.task.payload))):
            some = list(same)
            if in_blocks(self.runtime, some[0]):
                yield from blocks(self.runtime, some)
                continue
            yield from (some[start : start + size] for start in range(0, len(some), size))

    def _done(self, job: Job, receipt: Any) -> Done:
        if isinstance(receipt, Failure):
            return Done(None, job.state, receipt.reason, receipt.error())
        payload, state, reason, added = receipt
        return Done(payload, job.state if reason else state, reason, added=added)

    def evaluate(self, tensors: Tensors) -> Evaluation:
        """Test a model, each range of the test set by whichever worker is free."""
        self._broadcasts += 1
        ranges = self.runtime.test_ranges()
        orders = [Order("test", self._broadcasts, tensors, part, "a test") for part in ranges]
        parts: list[Evaluation] = self._distribute(orders)
        return sum(parts, start=Evaluation.empty(self.runtime.federation.num_classes))

    def close(self) -> None:
        """Let the worker processes go: free ones may be of use to the next run."""
        for worker in self._workers:
            if worker.free:
                with contextlib.suppress(OSError):
                    send(worker.pipe, ("end", None, ()))
        keep([worker.hand for worker in self._workers if worker.free])
        dismiss([worker.hand for worker in self._workers if not worker.free])
        self._workers.clear()

    def _distribute(self, orders: Sequence[Order], total: Sums | None = None) -> list[Any]:
        waiting = deque(enumerate(orders))
        free = list(self._workers)
        busy: dict[Any, Assignment] = {}
        answers: list[Any] = [None] * len(orders)
        came = [0] * len(orders)  # of a sum, how many of its pieces are in the total
        while waiting or busy:
            while waiting and free:
                number, order = waiting.popleft()
                worker = free.pop()
                worker.free = False
                self._send(worker, order)
                until = time.monotonic() + self.seconds * order.jobs
                busy[worker.pipe] = Assignment(number, order, worker, until)
            for assignment in self._over(busy):
                del busy[assignment.worker.pipe]
                number = assignment.number
                try:
                    answer, header, expected = receive(assignment.worker.pipe)
                    failed = _failure(answer)
                    if failed is not None and not (self.drop and assignment.order.kind == "task"):
                        raise failed.error()
                    if total is not None and header is not None:
                        pieces = incoming(assignment.worker.pipe, expected)
                        came[number] = total.take(header, pieces, came[number])
                        if came[number] < len(expected):
                            raise EOFError
                except (EOFError, OSError):
                    free.append(self._replace(assignment))
                    waiting.appendleft((number, assignment.order))
                    continue
                answers[number] = answer
                assignment.worker.free = True
                free.append(assignment.worker)
        return answers

    def _send(self, worker: Worker, order: Order) -> None:
        data = order.data if worker.holds != order.broadcast else None
        worker.holds = order.broadcast
        with contextlib.suppress(ConnectionError):  # as above
            send(worker.pipe, (order.kind, data, order.rest))

    def _over(self, busy: Mapping[Any, Assignment]) -> list[Assignment]:
        """Wait for an answer or a death, at most until the first assignment has taken too long."""
        first = min(assignment.until for assignment in busy.values())
        ready = wait(list(busy), None if first == math.inf else max(0.0, first - time.monotonic()))
        late = [pipe for pipe, e in busy.items() if e.until <= time.monotonic()]
        for pipe in late:
            if pipe not in ready:
                busy[pipe].worker.hand.process.kill()
        return [busy[pipe] for pipe in {*ready, *late}]

    def _replace(self, assignment: Assignment) -> Worker:
        """Start a worker in the place of one that died, or stop the run."""
        dead = assignment.worker
        late = time.monotonic() >= assignment.until
        ended = _ended(dead)
        why = f"took longer than task_seconds = {self.seconds:g}" if late else ended
        what = f"a worker process {why}: {assignment.order.what}"
        if self._restarts == RESTARTS:
            raise RunStopped(f"{what}; one was started again before")
        self._restarts += 1
        logger.warning("%s; it is started again, and does this once more", what)
        dismiss([dead.hand])
        self._workers.remove(dead)
        self._hire(1)
        return self._workers[-1]


def _names(block: Sequence[Job]) -> str:
    """Return what the jobs of a block are about, for people."""
    if len(block) == 1:
        return str(block[0])
    clients = ", ".join(str(job.task.client) for job in block[:10])
    more = f" and {len(block) - 10} more" if len(block) > 10 else ""
    first = block[0]
    return f"clients {clients}{more}, action '{first.task.action}', round {first.clock.round}"


def _unsendable(reason: str) -> FedtailError:
    return FedtailError(
        f"the model, data or method cannot be sent to worker processes ({reason}): define its "
        "classes and functions in a module that can be imported, or run with workers = 0"
    )


HINTS = {
    -9: " (-9 often means that memory ran out: use fewer --workers)",
    1: " (a script whose processes import it does its work under `if __name__ == '__main__':`)",
}
"""What an exit code often means: 1 is what Python gives a process that cannot begin."""


def _ended(worker: Worker) -> str:
    worker.hand.process.join(timeout=LEAVE)
    code = worker.hand.process.exitcode
    return f"ended with exit code {code}" + HINTS.get(code or 0, "")


def work_orders(pipe: Connection, plugins: list[str], threads: int, drop: bool) -> None:
    """Run in the worker process: take orders until the run ends, or the pipe is closed."""
    try:
        runtime = _arrive(pipe, plugins)
        with numerics(threads):
            _work(runtime, pipe, drop)
    except (EOFError, KeyboardInterrupt, ConnectionError):
        return  # who gave the orders has ended, perhaps by a kill


def _arrive(pipe: Connection, plugins: list[str]) -> Runtime:
    """Receive the runtime and say that it arrived, or why not."""
    try:
        load_plugins(plugins)
        runtime: Runtime = shared(pipe.recv())
    except (EOFError, KeyboardInterrupt):
        raise
    except Exception as error:  # importing a user's module may fail in any way
        pipe.send(f"{type(error).__name__}: {error}")
        raise EOFError from None
    # All tensors are shared between processes: right for data, wrong for the model.
    runtime.base, runtime.model = copy.deepcopy((runtime.base, runtime.model))
    import_lazily_used(runtime.device, runtime.method)
    pipe.send("")
    return runtime


def _work(runtime: Runtime, pipe: Connection, drop: bool) -> None:
    payload, tested = Payload(), runtime.model
    while True:
        kind, data, rest = receive(pipe)
        if kind == "task":
            payload = payload if data is None else data
            told, frames, together = rest
            _hand_over(pipe, *_do_block(runtime, payload, told, frames, together, drop))
        elif kind == "end":
            return
        else:
            try:
                if data is not None:
                    tested = runtime.load_tested(data)
                answer: Any = runtime.evaluate(tested, *rest)
            except Exception as error:  # a user's network may fail in any way
                answer = Failure.of(error, "a test")
            send(pipe, (answer, None, []))


def _do_block(
    runtime: Runtime,
    payload: Payload,
    told: Sequence[tuple[int, str, Clock, State]],
    frames: Frames | None,
    together: bool,
    drop: bool,
) -> tuple[list[Any], Sums | None]:
    """Do the jobs of a block, and add up their answers if there are frames to do it in."""
    receipts: dict[int, Any] = {}  # by client, who stands there once
    total, intake, forms = None, None, {}
    if frames is not None:
        actions = {action for _, action, *_ in told}
        forms = {a: within_frames(runtime.form(Task(0, a, payload)), frames) for a in actions}
        total = Sums(union(list(forms.values())), frames)
        intake = Intake(total)
    jobs = [Job(Task(k, action, payload), state, clock) for k, action, clock, state in told]
    found = done_together(runtime, jobs, total) if together else [None] * len(jobs)
    for job, answer in zip(jobs, found, strict=True):
        action, client = job.task.action, job.task.client
        done = attempt(runtime, job) if answer is None else done_in_block(answer)
        if done.error is not None:
            receipts[client] = Failure.of(done.error, str(job))
            if not drop:
                return list(receipts.values()), None
            continue
        if intake is None or done.added is not None:
            receipts |= _receipts([(client, done)])
            continue
        receipts[client] = None  # for now: the answer is not to be held here
        size = runtime.federation.size(client)
        receipts |= _receipts(intake.put(Arrival(job, done, forms[action], size)))
    receipts |= _receipts([] if intake is None else intake.settle())
    return list(receipts.values()), total


def _receipts(settled: Sequence[tuple[ClientId, Done]]) -> dict[ClientId, Any]:
    return {
        client: (done.payload, {} if done.reason else done.state, done.reason, done.added)
        for client, done in settled
    }


def _hand_over(pipe: Connection, receipts: list[Any], total: Sums | None) -> None:
    """Send what came of a block: receipts, and then the pieces of the sum."""
    pieces = [] if total is None else [whole for _, _, whole, _ in total.parts()]
    try:
        send(pipe, (receipts, None if total is None else total.header(), looks(pieces)))
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        # A sparse tensor, an object of somebody's own: nothing was sent, and nothing is added.
        reason = f"sent what no message can carry ({first_line(error)})"
        send(pipe, ([(None, {}, reason, None)] * len(receipts), None, []))
        return
    send_tensors(pipe, pieces)


def _failure(answer: Any) -> Failure | None:
    """Return the failure in an answer, if there is one."""
    some = answer if isinstance(answer, list) else [answer]
    return next((r for r in some if isinstance(r, Failure)), None)
