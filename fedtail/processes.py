"""Processes that are started once, and kept from one run to the next.

A process does what it is given: the tasks of a run (`fedtail.engines.pool`) or whole runs
(`fedtail.study.jobs`). To start one takes seconds, most of them to import PyTorch. Afterwards it
waits for the next thing to do, for a minute; it ends with this process, or when this one is killed.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess, current_process
from pathlib import Path
from types import ModuleType
from typing import Any

from fedtail.allocator import give_back

IDLE = 60.0
"""Seconds that a process waits for something to do."""
LEAVE = 5.0
"""Seconds that processes have to end by themselves."""
ANSWER = 2.0
"""Seconds that a process which has nothing to do may take to say that it is there."""
NEW, REUSED = 3.0, 0.1
"""Seconds until a new process can be used, and one that was kept (`benchmarks/cores.py`)."""
THREADED = ("OMP", "MKL", "OPENBLAS", "BLIS", "NUMEXPR")
"""Libraries with threads of their own, each told by the variable ..._NUM_THREADS."""

IMPORTED, THERE = "ready", "there?"
_kept: list[Hand] = []
_lock = threading.Lock()


@dataclass(eq=False)
class Hand:
    """Our end of a process.

    Attributes
    ----------
    process, pipe
        The process, and the way to it.
    surroundings
        What it was started in: it is of no use in others.
    seconds
        How long it took to be ready.
    """

    process: BaseProcess
    pipe: Connection
    surroundings: tuple[Any, ...]
    seconds: float | None = None
    _began: float = field(default_factory=time.monotonic)

    def ready(self, wait: bool = True) -> bool:
        """Whether the process has imported what it needs; it is an `EOFError` if it died."""
        if self.seconds is None and (wait or self.pipe.poll()):
            assert self.pipe.recv() == IMPORTED
            self.seconds = time.monotonic() - self._began
        return self.seconds is not None

    def begin(self, target: Callable[..., None], *args: Any) -> None:
        """Have a function called there, with the other end of the pipe and these arguments.

        The function comes back when it is told to, in words of its own: then `keep` the process.
        """
        self.pipe.send((target, args))

    def goes_on(self) -> bool:
        """Whether a process that was kept is there, and its code is what a new one would have."""
        try:
            self.pipe.send(THERE)
            return self.pipe.poll(ANSWER) and bool(self.pipe.recv())
        except (EOFError, OSError):
            return False


def hire(count: int, main: bool = True) -> list[Hand]:
    """Return processes with nothing to do: those that were kept, and new ones, still starting.

    Parameters
    ----------
    count
        How many.
    main
        Whether they import the main script, as Python's own processes do, and so know the classes
        that it defines. A script that nobody has prepared for it would run a second time.
    """
    wanted = _surroundings(main)
    with _lock:
        known = _kept.copy()
        _kept.clear()
    fit = [hand for hand in known if hand.surroundings == wanted and hand.goes_on()]
    keep(fit[count:])
    # Those of a process that this one is a fork of are not ours to end.
    ours = [hand for hand in known if hand.surroundings[0] == os.getpid()]
    dismiss([hand for hand in ours if hand not in fit])
    return [*fit[:count], *(_start(wanted, main) for _ in range(count - len(fit)))]


def keep(hands: Sequence[Hand]) -> None:
    """Keep processes that have nothing to do for whoever needs some next."""
    dismiss([hand for hand in hands if hand.seconds is None])
    with _lock:
        _kept.extend(hand for hand in hands if hand.seconds is not None)


def dismiss(hands: Sequence[Hand]) -> None:
    """End processes, whatever they do."""
    for hand in hands:
        hand.process.kill()
        hand.pipe.close()
    for hand in hands:
        hand.process.join(LEAVE)


class _WithoutArrays(pickle.Pickler):
    """Leaves out what is large and can always be sent, and counts its bytes."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.bytes: dict[int, int] = {}

    def persistent_id(self, item: Any) -> int | None:
        size = getattr(item, "nbytes", None)
        if not isinstance(size, int) or not hasattr(item, "dtype"):
            return None
        self.bytes[id(item)] = size
        return 0


def sent_without_script(thing: Any) -> int | None:
    """Return the bytes of the arrays of something that goes to a process of its own.

    Nothing is returned for what cannot be sent to one that has not imported the main script.
    """
    file = io.BytesIO()
    pickler = _WithoutArrays(file)
    try:
        pickler.dump(thing)
    except Exception:  # a class of somebody's own may fail in any way
        return None
    return None if b"__main__" in file.getvalue() else sum(pickler.bytes.values())


def may_start() -> bool:
    """Whether this process can have others: one that was started for work itself cannot."""
    here = current_process()
    return not here.daemon and not getattr(here, "_inheriting", False)


def starting_costs() -> float:
    """Return about how many seconds it takes until another process can be used."""
    return REUSED if _kept else NEW


def _surroundings(main: bool) -> tuple[Any, ...]:
    """Return what a new process would be given of this one, and a kept one can only have had."""
    return os.getpid(), main, Path.cwd(), tuple(sys.path), dict(os.environ)


def _start(surroundings: tuple[Any, ...], main: bool) -> Hand:
    from torch.multiprocessing import get_context  # its pipes pass tensors in shared memory

    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve_orders, args=(theirs,), daemon=True)
    with _one_thread(), _without_main() if not main else contextlib.nullcontext(), _deaf():
        process.start()
    theirs.close()
    return Hand(process, ours, surroundings)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Have libraries start without threads: the workers are as many as there are cores.

    PyTorch is told later how many threads it may have, by `numerics`.
    """
    names = [f"{pool}_NUM_THREADS" for pool in THREADED] + ["VECLIB_MAXIMUM_THREADS"]
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Hide the main script from a process that is started: it would be run there."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Hold Ctrl-C back: a process that is started inherits it, until it is told to ignore it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def serve_orders(pipe: Connection) -> None:
    """Do, in a process of its own, what comes through the pipe until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started us is asked too, and ends us
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        _import_all()
        pipe.send(IMPORTED)
        files = _files({})
        while pipe.poll(IDLE):
            said = pipe.recv()
            if said == THERE:
                pipe.send(files == {file: _changed(file) for file in files})
                continue
            target, args = said
            target(pipe, *args)
            del said, target, args
            give_back()  # the data of a run
            files = _files(files)
    except (EOFError, ConnectionError, KeyboardInterrupt):
        return  # who gave the orders has ended, perhaps by a kill


def _import_all() -> None:
    """Import what takes time, and allow for no thread beside this one."""
    import torch

    from fedtail.engines import pool
    from fedtail.engines.lazy_imports import import_lazily_used

    assert pool
    with contextlib.suppress(RuntimeError):  # a main script of somebody's has computed already
        torch.set_num_interop_threads(1)
    import_lazily_used(torch.device("cpu"))


def _files(known: dict[str, int]) -> dict[str, int]:
    """Return when the files of all imported modules were changed, as seen the first time."""
    names = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return {name: known.get(name) or _changed(name) for name in names if name}


def _changed(file: str) -> int:
    try:
        return Path(file).stat().st_mtime_ns
    except OSError:
        return 0
