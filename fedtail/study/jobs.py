"""Whole runs side by side, each in a process that does one after the other.

What a run computes depends on its experiment alone, so it does not matter who does it, or when.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import signal
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from fedtail.callbacks import Record
from fedtail.plugins import first_line, load_plugins
from fedtail.signals import ended_by_signals
from fedtail.study.plan import Planned
from fedtail.study.settle import Ending, Rounds, settle

SECONDS_TO_LEAVE = 5.0
"""Seconds that processes have to end by themselves."""
Hear = Callable[[Planned, Record], bool]
"""Is told each round of a run as it goes, and says whether to go on."""


@dataclass
class RunProcess:
    """Our end of a process, and the run that it is doing."""

    process: BaseProcess
    pipe: Connection
    doing: Planned | None = None


def side_by_side(
    plan: Sequence[Planned],
    jobs: int,
    hear: Hear,
    begin: Callable[[Planned], None],
    warn: Callable[[str], None],
) -> Generator[tuple[Planned, Ending]]:
    """Do runs in so many processes, and yield each as it ends.

    Parameters
    ----------
    plan, jobs
        The runs, and how many at once.
    hear, begin, warn
        Are told the rounds of each run, that it begins, and what it warns of.
    """
    plugins = list(dict.fromkeys(name for p in plan for name in p.experiment.plugins))
    waiting = deque(plan)
    workers: list[RunProcess] = []
    try:
        while waiting or any(worker.doing for worker in workers):
            free = next((worker for worker in workers if worker.doing is None), None)
            if waiting and (free or len(workers) < jobs):
                planned = waiting.popleft()
                try:
                    data = _packed(planned)
                except (pickle.PicklingError, AttributeError, TypeError) as error:
                    yield planned, _unsendable(error)
                    continue
                if free is None:
                    free = _hire(plugins)
                    workers.append(free)
                free.doing = planned
                begin(planned)
                with contextlib.suppress(ConnectionError):  # it is found dead below
                    free.pipe.send_bytes(data)
                continue
            for pipe in wait([worker.pipe for worker in workers if worker.doing]):
                worker = next(each for each in workers if each.pipe is pipe)
                yield from _heard(worker, workers, hear, warn)
    finally:
        _dismiss(workers)


def _heard(
    worker: RunProcess, workers: list[RunProcess], hear: Hear, warn: Callable[[str], None]
) -> Iterator[tuple[Planned, Ending]]:
    """Take one message of a process, which may be the end of its run, or its own."""
    planned = worker.doing
    assert planned is not None
    try:
        kind, content = worker.pipe.recv()
        if kind == "round":
            worker.pipe.send(hear(planned, content))
    except (EOFError, OSError):
        workers.remove(worker)
        worker.process.join(SECONDS_TO_LEAVE)
        said = f"its process ended with exit code {worker.process.exitcode}"
        yield planned, Ending(f"{said} (-9 often means that memory ran out: use fewer --jobs)")
        return
    if kind == "warning":
        warn(f"{planned.experiment.title}: {content}")
    elif kind == "end":
        worker.doing = None
        yield planned, content


def _packed(planned: Planned) -> bytes:
    """Return a run as bytes: the pipe itself would share tensors, and a model is not to be."""
    return pickle.dumps(replace(planned, experiment=planned.experiment.but(workers=0)))


def _unsendable(error: Exception) -> Ending:
    said = f"it cannot be sent to another process ({first_line(error)}): define its classes in a "
    return Ending(f"{said}module that can be imported, or use one job", refused=True)


def _hire(plugins: Sequence[str]) -> RunProcess:
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve_runs, args=(theirs, plugins), daemon=True)
    process.start()
    theirs.close()
    return RunProcess(process, ours)


def _dismiss(workers: Sequence[RunProcess]) -> None:
    """End all processes: those that are in the middle of a run are asked to leave it."""
    for worker in workers:
        if worker.doing is not None:
            worker.process.terminate()
        worker.pipe.close()
    until = time.monotonic() + SECONDS_TO_LEAVE
    for worker in workers:
        worker.process.join(max(0.0, until - time.monotonic()))
        worker.process.kill()


def serve_runs(pipe: Connection, plugins: Sequence[str]) -> None:
    """Do, in a process of its own, the runs that come through the pipe until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started us is asked too, and ends us
    logging.getLogger("fedtail").addHandler(_Told(pipe))
    try:
        with ended_by_signals():
            load_plugins(plugins)
            while True:
                pipe.send(("end", _received(pipe)))
    except (EOFError, ConnectionError, KeyboardInterrupt):
        return


def _received(pipe: Connection) -> Ending:
    data = pipe.recv_bytes()
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
