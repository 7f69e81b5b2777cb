"""Whole runs side by side, each in a process that does one after the other.

What a run computes depends on its experiment alone, so it does not matter who does it, or when.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

from fedtail.callbacks import Record
from fedtail.plugins import first_line, load_plugins
from fedtail.processes import LEAVE, Hand, dismiss, hire, keep
from fedtail.signals import ended_by_signals
from fedtail.study.plan import Planned
from fedtail.study.settle import Ending, Rounds, settle

Hear = Callable[[Planned, Record], bool]
"""Is told each round of a run as it goes, and says whether to go on."""


@dataclass(eq=False)
class RunProcess:
    """A process, and the run that it is doing since when."""

    hand: Hand
    doing: Planned | None = None
    since: float = 0.0


def side_by_side(
    plan: Sequence[Planned],
    jobs: int,
    hear: Hear,
    begin: Callable[[Planned], None],
    warn: Callable[[Planned, str], None],
    main: bool = True,
) -> Generator[tuple[Planned, Ending]]:
    """Do runs in so many processes, and yield each as it ends.

    Parameters
    ----------
    plan, jobs
        The runs, and how many at once.
    hear, begin, warn
        Are told the rounds of each run, that it begins, and what it warns of.
    main
        Whether the processes import the main script (see `hire`).
    """
    plugins = list(dict.fromkeys(name for p in plan for name in p.experiment.plugins))
    waiting = list(plan)
    took: dict[str, float] = {}
    workers: list[RunProcess] = []
    try:
        while waiting or any(worker.doing for worker in workers):
            free = next((worker for worker in workers if worker.doing is None), None)
            if waiting and (free or len(workers) < jobs):
                planned = _next(waiting, took)
                try:
                    data = _packed(planned)
                except (pickle.PicklingError, AttributeError, TypeError) as error:
                    yield planned, _unsendable(error)
                    continue
                if free is None:
                    (hand,) = hire(1, main)
                    free = RunProcess(hand)
                    workers.append(free)
                    hand.begin(serve_runs, plugins)
                free.doing, free.since = planned, time.monotonic()
                begin(planned)
                with contextlib.suppress(ConnectionError):  # it is found dead below
                    free.hand.pipe.send_bytes(data)
                continue
            for pipe in wait([worker.hand.pipe for worker in workers if worker.doing]):
                worker = next(each for each in workers if each.hand.pipe is pipe)
                for planned, ending in _heard(worker, workers, hear, warn):
                    took[planned.label] = time.monotonic() - worker.since
                    yield planned, ending
    finally:
        _dismiss(workers)


def _next(waiting: list[Planned], took: dict[str, float]) -> Planned:
    """Take the run that is begun next: those that take long are not to be the last.

    A label that was never seen comes first, then the one whose last run took longest.
    """
    first = max(waiting, key=lambda planned: took.get(planned.label, float("inf")))
    waiting.remove(first)
    return first


def _heard(
    worker: RunProcess, workers: list[RunProcess], hear: Hear, warn: Callable[[Planned, str], None]
) -> Iterator[tuple[Planned, Ending]]:
    """Take one message of a process, which may be the end of its run, or its own."""
    planned, hand = worker.doing, worker.hand
    assert planned is not None
    try:
        if hand.seconds is None:
            hand.ready()
            return
        kind, content = hand.pipe.recv()
        if kind == "round":
            hand.pipe.send(hear(planned, content))
    except (EOFError, OSError):
        workers.remove(worker)
        hand.process.join(LEAVE)
        said = f"its process ended with exit code {hand.process.exitcode}"
        hint = "-9 often means that memory ran out: use fewer --jobs"
        yield planned, Ending(f"{said} ({hint})", died=True)
        return
    if kind == "warning":
        warn(planned, content)
    elif kind == "end":
        worker.doing = None
        yield planned, content


def _packed(planned: Planned) -> bytes:
    """Return a run as bytes: the pipe itself would share tensors, and a model is not to be."""
    return pickle.dumps(replace(planned, experiment=planned.experiment.but(workers=0)))


def _unsendable(error: Exception) -> Ending:
    said = f"it cannot be sent to another process ({first_line(error)}): define its classes in a "
    return Ending(f"{said}module that can be imported, or use one job", refused=True)


def _dismiss(workers: Sequence[RunProcess]) -> None:
    """Keep the processes that are free; those in the middle of a run are asked to leave it."""
    busy = [worker.hand for worker in workers if worker.doing is not None]
    for hand in busy:
        hand.process.terminate()
    free = [worker.hand for worker in workers if worker.doing is None]
    for hand in free:
        with contextlib.suppress(OSError):
            hand.pipe.send_bytes(b"")
    keep(free)
    until = time.monotonic() + LEAVE
    for hand in busy:
        hand.process.join(max(0.0, until - time.monotonic()))
    dismiss(busy)


def serve_runs(pipe: Connection, plugins: Sequence[str]) -> None:
    """Do, in a process of its own, the runs that come through the pipe, until nothing comes."""
    told = _Told(pipe)
    logging.getLogger("fedtail").addHandler(told)
    try:
        with ended_by_signals():
            load_plugins(plugins)
            while data := pipe.recv_bytes():
                pipe.send(("end", _received(data, pipe)))
    finally:
        logging.getLogger("fedtail").removeHandler(told)


def _received(data: bytes, pipe: Connection) -> Ending:
    try:
        planned = pickle.loads(data)
    except Exception as error:  # importing a user's module may fail in any way
        return _unsendable(error)
    return settle(planned, [Rounds(partial(_tell, pipe))])


def _tell(pipe: Connection, record: Record) -> bool:
    pipe.send(("round", {key: record.get(key) for key in ("round", "accuracy", "validation")}))
    return bool(pipe.recv())


class _Told(logging.Handler):
    """Hands warnings to who started this process."""

    def __init__(self, pipe: Connection) -> None:
        super().__init__(logging.WARNING)
        self._pipe = pipe

    def emit(self, record: logging.LogRecord) -> None:
        message: Any = ("warning", record.getMessage())
        self._pipe.send(message)
