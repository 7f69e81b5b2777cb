"""A federation of real processes, for the slow tests: bounded in time, and nothing is left over."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from fedtail.engines.flower.processes import descendants
from fedtail.state import digest
from fedtail.tensors import unpack_tensors

PLUGIN = '''
"""Clients that misbehave when a file tells them to."""

import os
import time
from pathlib import Path

import torch

from fedtail import FedAvg, Method, Payload

ORDERS = Path(__file__).with_name("orders")


@Method.register("unruly")
class Unruly(FedAvg):
    """FedAvg whose client k does what the file orders/k says."""

    family = "test"
    paper = "none"

    def reply(self, run):
        payload = super().reply(run)
        file = ORDERS / f"{run.client.id}-{run.client.round}"
        order = file.read_text() if file.exists() else ""
        (ORDERS / f"seen-{run.client.id}-{run.client.round}").touch()
        if order == "raise":
            raise ValueError("patient 0815 is ill")
        if order == "sleep":
            time.sleep(600)
        spoil = {"nan": lambda t: t * float("nan"), "shape": lambda t: t[:1]}.get(order)
        if spoil is None:
            return payload
        return Payload({n: spoil(t) for n, t in payload.tensors.items()}, payload.scalars)
'''

RESIDENT = "fedtail.engines.flower.resident"
MARK = "FEDTAIL_TEST_RUN"
"""A variable that everything a run starts inherits: it finds what lost its parent, too."""

QUICK = [
    "--clients",
    "3",
    "--epochs",
    "1",
    "--imbalance",
    "10",
    "--model",
    "mlp",
    "model.hidden=[16]",
    "--together",
    "0",
]
"""A federation whose training takes no time beside that of starting processes.

Each client trains alone, as on nodes: the bits of an embedded run are those of a federation then.
"""


class Run:
    """A `fedtail run` in a process of its own."""

    def __init__(self, folder: Path, words: list[str], log: Path) -> None:
        self.folder = folder
        self.log = log
        self.mark = uuid.uuid4().hex
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fedtail", *words],
                stdout=file,
                stderr=file,
                cwd=log.parent,
                env={**os.environ, MARK: self.mark},
            )

    @property
    def output(self) -> str:
        return self.log.read_text()

    def until(self, ready: Callable[[], object], seconds: float) -> None:
        """Wait for something to happen while the run goes on."""
        until = time.monotonic() + seconds
        while not ready():
            assert self.process.poll() is None, self.output
            assert time.monotonic() < until, self.output
            time.sleep(0.1)

    def end(self, seconds: float) -> int:
        """Wait for the end, and return the exit code."""
        return self.process.wait(seconds)

    def records(self) -> list[dict[str, Any]]:
        path = self.folder / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def digest(self) -> str:
        return digest(unpack_tensors((self.folder / "model.safetensors").read_bytes(), "a model"))

    def family(self) -> dict[int, str]:
        """Return the command line of every process that the run started."""
        found = {}
        for one in descendants(self.process.pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                found[one.pid] = " ".join(one.cmdline())
        return found

    def residents(self, node: int = 0) -> list[int]:
        """Return the processes that stay beside the nodes, or beside one of them."""
        found = {pid: line for pid, line in marked(self.mark).items() if RESIDENT in line}
        beside = {one.pid for one in descendants(node)} if node else set()
        return [p for p, line in found.items() if not node or int(line.split()[-2]) in beside]

    def find(self, *words: str) -> list[int]:
        return [pid for pid, line in self.family().items() if all(word in line for word in words)]


@contextmanager
def running(folder: Path, *words: str) -> Iterator[Run]:
    """Start a run; whatever the test does, nothing of it is left afterwards."""
    made = Run(folder, list(words), folder.with_suffix(".log"))
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.process.send_signal(signal.SIGTERM)
        try:
            made.process.wait(60)
        except subprocess.TimeoutExpired:
            made.process.kill()
            made.process.wait()
        left = marked(made.mark)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert left == {}


def marked(mark: str) -> dict[int, str]:
    """Return the command line of every running process with a mark in its environment."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (path / "environ").read_bytes().split(b"\0"):
                found[int(path.name)] = (path / "cmdline").read_bytes().decode().replace("\0", " ")
        except OSError:  # it ended while it was looked at
            continue
    return {pid: line for pid, line in found.items() if not zombie(pid)}


def zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def kill(pids: list[int]) -> None:
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


SECURE_PLUGIN = (
    PLUGIN
    + '''

from dataclasses import replace

from fedtail.privacy.secure.member import Member

perform = Member.perform


def ordered(self, task):
    """Answer a step of a secure sum as the file orders/STEP-CLIENT says, once."""
    file = ORDERS / f"{task.action}-{task.client}"
    order = file.read_text() if file.exists() else ""
    if order:
        file.rename(ORDERS / f"seen-{task.action}-{task.client}")
    if order == "sleep":
        time.sleep(600)
    answer = perform(self, task)
    if order == "wrong":
        answer = replace(answer, tensors={n: t ^ 1 for n, t in answer.tensors.items()})
    return answer


Member.perform = ordered
'''
)
