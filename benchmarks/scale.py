"""A million clients through the whole `run`: set-up, memory, and what a round costs.

Every client has 20 samples of 64 bytes, and 100 of them are in a round of a logistic model. A run
with many clients and one with 1,000 take turns in one process, round by round, each with its
folder, test and checkpoints; processor time counts. It is done for a method without client state
(FedAvg) and for one with (SCAFFOLD). The first round has ten thousand clients, so that there is a
lot to remember. Every method is measured in a process of its own, because memory is that of the
process.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.results_file import save
from fedtail import (
    Arrays,
    Callback,
    Experiment,
    FedAvg,
    LocalTraining,
    Method,
    Natural,
    Scaffold,
    run,
)
from fedtail.callbacks import Record, RunInfo
from fedtail.methods.scaffold import ScaffoldState
from fedtail.protocol import Exchange, Server

SAMPLES, WIDTH, CLASSES = 20, 64, 10
COHORT, FEW, FIRST = 100, 1_000, 10_000
LOCAL = LocalTraining(lr=0.01, batch_size=10)
WARM_UP = 2
"""Rounds that are not counted."""


@Method.register("benchmark-scaffold")
class MuchToRemember(Scaffold):
    """SCAFFOLD with ten thousand clients in the first round, if there are so many."""

    def round(self, s: ScaffoldState, server: Server) -> Exchange[ScaffoldState]:
        """Use many clients at first."""
        first = server.round == 1 and len(server.clients) > FIRST
        return super().round(s, replace(server, per_round=FIRST) if first else server)


METHODS: dict[str, Method[Any]] = {
    "fedavg": FedAvg(local=LOCAL),
    "scaffold": MuchToRemember(local=LOCAL),
}


class Turns(Callback):
    """Lets two runs go on in turn, a round each, and keeps what a turn takes."""

    def __init__(self, mine: threading.Semaphore, other: threading.Semaphore) -> None:
        self.mine, self.other = mine, other
        self.seconds: list[float] = []
        self.set_up = 0.0

    def begin(self) -> None:
        """Wait for the first turn, which is the set-up."""
        self.mine.acquire()
        self.began = time.process_time()

    def on_start(self, info: RunInfo) -> None:
        """Note what the set-up took; round 1 is a turn of its own."""
        self.set_up = self._took()

    def on_round(self, record: Record) -> None:
        """Let the other one go on; the checkpoint of this round is in the next turn."""
        self.seconds.append(self._took())

    def close(self) -> None:
        """Let the other one go on for good."""
        self.other.release()

    def _took(self) -> float:
        taken = time.process_time() - self.began
        self.other.release()
        self.mine.acquire()
        self.began = time.process_time()
        return taken


def federation(clients: int) -> tuple[Arrays, int]:
    """Return random samples with their clients, and how many bytes they are."""
    draw = np.random.default_rng(0)
    many = clients * SAMPLES
    x = draw.integers(0, 256, (many, WIDTH), dtype=np.uint8)
    y, owner = draw.integers(0, CLASSES, many), np.repeat(np.arange(clients), SAMPLES)
    test = draw.integers(0, 256, (FEW, WIDTH), dtype=np.uint8), draw.integers(0, CLASSES, FEW)
    names = tuple(map(str, range(CLASSES)))
    data = Arrays(x, y, *test, classes=names, client_train=owner, normalisation="none")
    return data, x.nbytes + y.nbytes + owner.nbytes


def one_run(clients: int, method: str, rounds: int, out: Path, turns: Turns) -> int:
    """Run an experiment in turns; return the bytes of its data."""
    turns.begin()
    data, size = federation(clients)
    turns.began = time.process_time()
    experiment = Experiment(
        data=data,
        model={"name": "mlp", "hidden": ()},
        partition=Natural(),
        per_round=COHORT,
        rounds=rounds,
        method=METHODS[method],
    )
    run(experiment, out=out, callbacks=[turns])
    return size


def measure(method: str, clients: int, rounds: int) -> dict[str, Any]:
    """Run with many and with few clients in turn."""
    first, second = threading.Semaphore(1), threading.Semaphore(0)
    many, few = Turns(first, second), Turns(second, first)
    with TemporaryDirectory() as folder:
        out = Path(folder)
        beside = threading.Thread(target=one_run, args=(FEW, method, rounds, out / "few", few))
        beside.start()
        raw = one_run(clients, method, rounds, out / "many", many)
        beside.join()
        kept = {p.name: p.stat().st_size for p in (out / "many").rglob("*") if p.is_file()}
    pairs = list(zip(many.seconds, few.seconds, strict=True))[WARM_UP:]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "clients": clients,
        "set_up_cpu_seconds": round(many.set_up, 2),
        "target_set_up_cpu_seconds": 30,
        "raw_gb": round(raw / 1e9, 3),
        "peak_gb": round(peak / 1e9, 3),
        "target_peak_gb": round(1.5 * raw / 1e9 + 1, 3),
        "round_cpu_seconds": round(median(a for a, _ in pairs), 4),
        f"round_cpu_seconds_of_{FEW}": round(median(b for _, b in pairs), 4),
        "round_ratio": round(median(a / b for a, b in pairs), 3),
        "target_round_ratio": 1.2,
        "first_round_clients": FIRST if method == "scaffold" and clients > FIRST else COHORT,
        "first_round_cpu_seconds": round(many.seconds[0], 2),
        "split_json_bytes": kept["split.json"],
        "last_manifest_bytes": kept[max(name for name in kept if name.startswith("manifest"))],
        "folder_mb": round(sum(kept.values()) / 1e6, 2),
    }


def main() -> None:
    """Measure every method in a process of its own, and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=22)
    parser.add_argument("--method", choices=METHODS, help="measure one, here, and save nothing")
    options = parser.parse_args()
    if options.method:
        print(json.dumps(measure(options.method, options.clients, options.rounds)))
        return
    sizes = ["--clients", str(options.clients), "--rounds", str(options.rounds)]
    found = {}
    for method in METHODS:
        command = [sys.executable, "-m", "benchmarks.scale", "--method", method, *sizes]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found[method] = json.loads(done.stdout.splitlines()[-1])
    save("scale", {"threads": 1, "cohort": COHORT, "samples_per_client": SAMPLES, **found})


if __name__ == "__main__":
    main()
