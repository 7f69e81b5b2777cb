"""A SuperLink and SuperNodes on the loopback interface of this machine."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from fedtail.engines.flower.door import HEADER, KEY, new_door, secret_of
from fedtail.engines.flower.processes import (
    RESIDENTS,
    Started,
    Watchdog,
    descendants,
    free_ports,
    residents,
    residents_folder,
    start,
    stop,
)
from fedtail.errors import RunStopped
from fedtail.files import write_atomic

if TYPE_CHECKING:  # it needs a package that only Flower brings
    from fedtail.engines.flower.tls import Certificates

CONNECTION = "fedtail"
"""What Flower's configuration calls our SuperLink."""
READY = 120.0
"""Seconds that a SuperLink may take to listen."""
SUBMIT = 180.0
"""Seconds that one call of `flwr` may take."""
NODE_RESTARTS = 3
"""How often a node is started again that ends soon after it began."""
KEY_RESTARTS = 10
"""The same of a node with a key, which Flower refuses for about a minute after it was killed."""
SOON = 60.0
"""Seconds."""


@dataclass(frozen=True)
class Node:
    """A SuperNode of this machine.

    Attributes
    ----------
    command
        How it is started, but for its port.
    most
        How often it may be started again and end soon.
    tries
        How often it was started again and ended soon.
    since
        When it was started.
    """

    started: Started
    command: Sequence[str]
    most: int
    tries: int = 0
    since: float = field(default_factory=time.monotonic)

    @property
    def given_up(self) -> bool:
        """Whether it ends whenever it is started."""
        return bool(self.started.ended) and self.tries >= self.most

    @property
    def due(self) -> float:
        """When it may be started again: at once, then after 2, 4, 8 and 15 seconds."""
        return self.since + (min(2.0**self.tries, 15.0) if self.tries else 0.0)

    def again(self, started: Started) -> Node:
        """Return what it is after another start."""
        lived = time.monotonic() - self.since > SOON
        return Node(started, self.command, self.most, 1 if lived else self.tries + 1)


@dataclass
class FlowerProcesses:
    """Processes of one federation.

    Attributes
    ----------
    home
        A folder for Flower's own files; removed after the run.
    logs
        Where each process's output goes.
    tls
        Whether nodes prove who they are by keys of their own, too, as deployed ones do.
    simulation
        Whether clients are simulated by Ray, instead of SuperNodes.
    """

    home: Path
    logs: Path
    tls: bool = False
    simulation: bool = False
    watchdog: Watchdog | None = None
    started: list[Started] = field(default_factory=list)
    nodes: dict[int, Node] = field(default_factory=dict)
    seen: set[psutil.Process] = field(default_factory=set)
    port: int = 0
    certificates: Certificates = field(init=False)

    @property
    def env(self) -> dict[str, str]:
        """What Flower has to be told: no calls home, one thread, little waiting."""
        places = (self.home / "bin", Path(sys.executable).parent, os.environ.get("PATH", ""))
        return {
            "FLWR_HOME": str(self.home),
            RESIDENTS: str(residents_folder(self.home)),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
            "OMP_NUM_THREADS": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",  # 15 by itself: on a busy machine nobody ever answers
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.home / KEY),
            "PATH": ":".join(map(str, places)),
        }

    def close(self) -> None:
        """End everything that was started."""
        stop(self.started, self.seen)
        stop((), residents(self.home))
        if self.watchdog is not None:
            self.watchdog.dismiss()

    def open(self) -> None:
        """Start the SuperLink and wait until it listens."""
        # It needs a package that only Flower brings.
        from fedtail.engines.flower.tls import make_certificates

        new_door(self.home, Path(sys.executable).parent)
        self.certificates = made = make_certificates(self.home)
        (self.port,) = free_ports(1)
        command = [self.tool("flower-superlink"), "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--disable-runtime-dependency-installation"]
        command += ["--simulation"] if self.simulation else []
        command += [*self.served_with, *(["--enable-supernode-auth"] if self.tls else [])]
        write_atomic(
            self.home / "config.toml",
            f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
            f'address = "127.0.0.1:{self.port}"\nroot-certificates = "{made.authority}"\n',
        )
        self._start("superlink", command)
        self._wait_until_ready()

    def look(self) -> None:
        """Remember what the processes have started, for the day that one of them is killed."""
        self.seen |= descendants(*(one.process.pid for one in self.started))

    @property
    def served_with(self) -> list[str]:
        """The options of a server that shows the federation's certificate."""
        made = self.certificates
        words = ["--ssl-ca-certfile", str(made.authority), "--ssl-certfile", str(made.certificate)]
        return [*words, "--ssl-keyfile", str(made.key)]

    def add_node(self, partition: int, partitions: int) -> None:
        """Start a SuperNode that holds one partition; with `tls` it has a registered key."""
        config = f"partition-id={partition} num-partitions={partitions}"
        command = [self.tool("flower-supernode"), "--superlink", f"127.0.0.1:{self.port}"]
        command += ["--root-certificates", str(self.certificates.authority), *self.served_with]
        command += ["--host", "127.0.0.1", "--node-config", config]
        if self.tls:
            command += ["--auth-supernode-private-key", str(self.new_key(f"node-{partition}"))]
        started = self._start_node(partition, command)
        self.nodes[partition] = Node(started, command, KEY_RESTARTS if self.tls else NODE_RESTARTS)

    def revive(self) -> list[str]:
        """Start nodes again that have ended, after a while; return what is to be said of them."""
        said = []
        for partition, node in self.nodes.items():
            if node.started.ended and not node.given_up and time.monotonic() > node.due:
                said.append(f"{node.started.ended}; it is started again")
                self.nodes[partition] = node.again(self._start_node(partition, node.command))
        return said

    def _start_node(self, partition: int, command: Sequence[str]) -> Started:
        (port,) = free_ports(1)
        return self._start(f"node-{partition}", [*command, "--port", str(port)])

    def new_key(self, name: str) -> Path:
        """Make a key for a SuperNode and register it."""
        from fedtail.engines.flower.tls import make_node_key

        private, public = make_node_key(self.home, name)
        self.flwr("supernode", "register", str(public), CONNECTION)
        return private

    def submit(self, app: Path, *options: str) -> str:
        """Submit an app and return the number of its run."""
        words = self.flwr("run", str(app), CONNECTION, "--format", "json", *options)
        return str(words["run-id"])

    def status(self, run: str) -> str:
        """Return how a run stands, in Flower's words."""
        listed = self.flwr("list", CONNECTION, "--run-id", run, "--format", "json")
        found = listed.get("runs", [{}])[0]
        return f"{found.get('status', 'unknown')} {found.get('status-details', '')}".strip()

    def flwr(self, *words: str) -> dict[str, Any]:
        """Call the `flwr` command and return the JSON it prints, if it does."""
        try:
            done = subprocess.run(
                [self.tool("flwr"), *words],
                env={**os.environ, **self.env},
                capture_output=True,
                text=True,
                timeout=SUBMIT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise RunStopped(f"flwr {words[0]} took longer than {SUBMIT:.0f} s") from None
        begin = done.stdout.find("{")
        try:
            said: dict[str, Any] = json.loads(done.stdout[begin:]) if begin >= 0 else {}
        except ValueError:
            said = {}
        if done.returncode or said.get("success") is False:
            reason = said.get("error-message") or " ".join((done.stderr or done.stdout).split())
            raise RunStopped(f"flwr {words[0]} failed: {reason[-300:]}")
        return said

    def _start(self, name: str, command: list[str]) -> Started:
        self.watchdog = self.watchdog or Watchdog.over(self.home)
        one = start(name, command, self.logs / f"{name}.log", self.env)
        self.started.append(one)
        self.watchdog.watch(one)
        return one

    def tool(self, name: str) -> str:
        """Return a command of Flower's that knows this federation's secret."""
        return str(self.home / "bin" / name)

    def _wait_until_ready(self) -> None:
        url = f"https://127.0.0.1:{self.port}/health"
        asked = urllib.request.Request(url, headers={HEADER: secret_of(self.home)})
        trusted = ssl.create_default_context(cafile=str(self.certificates.authority))
        until = time.monotonic() + READY
        while time.monotonic() < until:
            if self.started[-1].ended:
                raise RunStopped(self.started[-1].ended)
            try:
                with urllib.request.urlopen(asked, timeout=5, context=trusted):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        raise RunStopped(f"the SuperLink did not listen within {READY:.0f} s ({self.logs})")
