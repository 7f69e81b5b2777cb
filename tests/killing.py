"""Processes to be killed. A fork server imports the package once, so that each start is quick."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from fedtail.cli import main


def command(arguments: list[str], output: str) -> None:
    """Run the command line as its own process would, in this process."""
    with Path(output).open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = ["fedtail", *arguments]
    main()


def start(arguments: list[str], output: Path) -> multiprocessing.process.BaseProcess:
    """Start a command line in a process of its own."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fedtail.cli"])
    process = context.Process(target=command, args=(arguments, str(output)))
    process.start()
    return process


def kill_when(
    process: multiprocessing.process.BaseProcess, ready: Callable[[], bool], delay: float
) -> None:
    """End a process with SIGKILL, some time after something has happened."""
    limit = time.monotonic() + 60
    while not ready() and process.is_alive() and time.monotonic() < limit:
        time.sleep(0.001)
    time.sleep(delay)
    if process.pid is not None and process.is_alive():
        os.kill(process.pid, signal.SIGKILL)
    process.join(60)


def rounds_done(folder: Path) -> int:
    """Return how many rounds the checkpoint of a run stands on."""
    manifests = (folder / "checkpoint").glob("manifest-*.json")
    return max((int(path.stem.partition("-")[2]) for path in manifests), default=0)
