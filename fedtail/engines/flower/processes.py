"""Processes of this machine: started with a log, stopped with everything that they started.

Run as a program, this file is the watchdog that ends them if whoever started them is killed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

GRACE = 8.0
"""Seconds that a process has to end by itself."""
RESIDENTS = "FEDTAIL_RESIDENTS"
"""The variable that names the folder with what nodes' resident processes need, each in its own."""


@dataclass(frozen=True)
class Started:
    """One process that was started here."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def ended(self) -> str:
        """How it ended, in words; nothing while it runs."""
        code = self.process.poll()
        return "" if code is None else f"{self.name} ended with exit code {code} (log: {self.log})"


def start(name: str, command: Sequence[str], log: Path, env: Mapping[str, str]) -> Started:
    """Start a process in a session of its own, so that Ctrl-C reaches only the launcher."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env={**os.environ, **env},
            start_new_session=True,
        )
    return Started(name, process, log)


@dataclass(frozen=True)
class Watchdog:
    """A process that waits at the end of a pipe: a kill of this one closes it, too.

    Then it ends what it was told of, with all that those have started, and removes a folder.
    """

    process: subprocess.Popen[bytes]

    @classmethod
    def over(cls, folder: Path) -> Watchdog:
        """Start one."""
        # As a file, because importing the package takes longer than some runs.
        command = [sys.executable, "-I", __file__, str(folder)]
        return cls(
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )

    def watch(self, one: Started) -> None:
        """Tell it of one more process."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # somebody killed it: the run can do without
            self.process.stdin.write(f"{one.process.pid}\n".encode())
            self.process.stdin.flush()

    def dismiss(self) -> None:
        """Let it end; what it was told of must have ended before."""
        with contextlib.suppress(BrokenPipeError):
            self.process.communicate()


def keep_watch(folder: Path) -> None:
    """Be a watchdog: read numbers of processes until the pipe closes, then end them."""
    told: list[psutil.Process] = []
    while line := sys.stdin.readline():
        with contextlib.suppress(psutil.NoSuchProcess):
            told.append(psutil.Process(int(line)))
    roots = _alive(told)
    family = descendants(*(root.pid for root in roots)) | set(roots)
    _signal(roots, signal.SIGTERM)
    _wait(family, time.monotonic() + GRACE)
    _signal(_alive(family), signal.SIGKILL)
    stop((), residents(folder))
    shutil.rmtree(folder, ignore_errors=True)


def stop(started: Iterable[Started], seen: Iterable[psutil.Process] = ()) -> None:
    """End processes and all that they started; those that do not listen are killed.

    Parameters
    ----------
    started
        What is asked to end.
    seen
        Descendants that were seen before: a parent that was killed leads to its children no more.
    """
    running = list(started)
    family = descendants(*(one.process.pid for one in running)) | set(seen)
    for one in running:
        with contextlib.suppress(ProcessLookupError):
            one.process.terminate()
    until = time.monotonic() + GRACE
    for one in running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            one.process.wait(max(0.1, until - time.monotonic()))
        one.process.kill()
        one.process.wait()
    _wait(family, until)
    _signal(_alive(family), signal.SIGKILL)
    _wait(family, time.monotonic() + GRACE)  # on a busy machine, also a killed one takes a moment


def descendants(*pids: int) -> set[psutil.Process]:
    """Return the children of processes, their children, and so on."""
    found: set[psutil.Process] = set()
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            found.update(psutil.Process(pid).children(recursive=True))
    return set(_alive(found))


def residents(home: Path) -> set[psutil.Process]:
    """Return the resident processes of a federation's nodes, which are no one's children.

    They end with their nodes, a moment later.
    """
    found = set()
    for file in residents_folder(home).glob("*/pid"):
        with contextlib.suppress(OSError, ValueError, psutil.Error):
            one = psutil.Process(int(file.read_text()))
            if str(file.parent) in one.cmdline():  # the number may be another's by now
                found.add(one)
    return found


def residents_folder(home: Path) -> Path:
    """Return the folder of all residents of a federation on this machine."""
    return home / "residents"


def alive(pid: int) -> bool:
    """Whether there is a process of this number that has not ended."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def running(one: psutil.Process) -> bool:
    """Whether a process has not ended."""
    # Asked of both: a number may be used again, and what has ended may wait for its parent.
    return bool(one.is_running() and alive(one.pid))


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _alive(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    return [one for one in processes if running(one)]


def _signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for one in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.send_signal(number)


def _wait(processes: Iterable[psutil.Process], until: float) -> None:
    while _alive(processes) and time.monotonic() < until:
        time.sleep(0.1)


if __name__ == "__main__":
    keep_watch(Path(sys.argv[1]))
