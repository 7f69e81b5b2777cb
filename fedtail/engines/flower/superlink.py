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
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

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
        Whether messages are encrypted and nodes prove who they are.
    simulation
        Whether clients are simulated by Ray, instead of SuperNodes.
    """

    home: Path
    logs: Path
    tls: bool = False
    simulation: bool = False
    watchdog: Watchdog | None = None
    started: list[Started] = field(default_factory=list)
    seen: set[psutil.Process] = field(default_factory=set)
    port: int = 0
    certificates: Certificates | None = None

    @property
    def env(self) -> dict[str, str]:
        """What Flower has to be told: no calls home, one thread, little waiting."""
        return {
            "FLWR_HOME": str(self.home),
            RESIDENTS: str(residents_folder(self.home)),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
            "OMP_NUM_THREADS": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
        }

    def close(self) -> None:
        """End everything that was started."""
        stop(self.started, self.seen)
        stop((), residents(self.home))
        if self.watchdog is not None:
            self.watchdog.dismiss()

    def open(self) -> None:
        """Start the SuperLink and wait until it listens."""
        (self.port,) = free_ports(1)
        command = [tool("flower-superlink"), "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--disable-runtime-dependency-installation"]
        command += ["--simulation"] if self.simulation else []
        address = f'address = "127.0.0.1:{self.port}"'
        if self.tls:
            from fedtail.engines.flower.tls import make_certificates

            made = self.certificates = make_certificates(self.home)
            command += ["--ssl-ca-certfile", str(made.authority)]
            command += ["--ssl-certfile", str(made.certificate), "--ssl-keyfile", str(made.key)]
            command += ["--enable-supernode-auth"]
            trust = f'root-certificates = "{made.authority}"'
        else:
            command += ["--insecure"]
            trust = "insecure = true"
        write_atomic(
            self.home / "config.toml",
            f'[superlink]\ndefault = "{CONNECTION}"\n\n'
            f"[superlink.{CONNECTION}]\n{address}\n{trust}\n",
        )
        self._start("superlink", command)
        self._wait_until_ready()

    def look(self) -> None:
        """Remember what the processes have started, for the day that one of them is killed."""
        self.seen |= descendants(*(one.process.pid for one in self.started))

    def add_node(self, partition: int, partitions: int, key: Path | None = None) -> Started:
        """Start a SuperNode that holds one partition; with TLS it has a key that is registered."""
        (port,) = free_ports(1)
        config = f"partition-id={partition} num-partitions={partitions}"
        command = [tool("flower-supernode"), "--superlink", f"127.0.0.1:{self.port}"]
        command += ["--host", "127.0.0.1", "--port", str(port), "--node-config", config]
        if self.certificates is None:
            command += ["--insecure"]
        else:
            key = key or self.new_key(f"node-{partition}")
            command += ["--root-certificates", str(self.certificates.authority)]
            command += ["--auth-supernode-private-key", str(key)]
        return self._start(f"node-{partition}", command)

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
                [tool("flwr"), *words],
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

    def _wait_until_ready(self) -> None:
        scheme = "https" if self.certificates else "http"
        url = f"{scheme}://127.0.0.1:{self.port}/health"
        trusted = None
        if self.certificates:
            trusted = ssl.create_default_context(cafile=str(self.certificates.authority))
        until = time.monotonic() + READY
        while time.monotonic() < until:
            if self.started[-1].ended:
                raise RunStopped(self.started[-1].ended)
            try:
                with urllib.request.urlopen(url, timeout=5, context=trusted):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        raise RunStopped(f"the SuperLink did not listen within {READY:.0f} s ({self.logs})")


def tool(name: str) -> str:
    """Return a command that was installed beside this Python."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else name
