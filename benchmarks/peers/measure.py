"""The measuring itself, inside the peers' environment: ``python -m benchmarks.peers.measure FILE``.

All libraries but Flower alternate in one process, round by round, on one thread; medians count. For
the start-up every one of them, and Flower, runs in a fresh process up to the end of round 1.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import torch
from torch import Tensor

from benchmarks.peers.adapters import PEERS, Fedtail, Peer, Seconds
from benchmarks.peers.workloads import WORKLOADS, Workload

STARTED_ON = "logistic"
"""The workload of the fresh processes: what they need longest for is to import."""
FLOWER_ROUNDS = 6
PACKAGES = {
    "fedlab": "fedlab",
    "pfl": "pfl",
    "fluke": "fluke-fl",
    "flower": "flwr",
    "ray": "ray",
    "torch": "torch",
}


def alternating(workload: Workload, rounds: int) -> dict[str, Any]:
    """Return of each peer the median processor and wall seconds of a round."""
    peers = {name: make(workload) for name, make in PEERS.items()}
    for name, peer in peers.items():
        size = sum(p.numel() for p in peer.network.parameters())
        if size != workload.parameters:
            raise ValueError(f"{name} trains {size} parameters, not {workload.parameters}")
        before = weight(peer).clone()
        peer.round()
        peer.round()
        if torch.equal(before, weight(peer)):
            raise ValueError(f"{name} does not train")
    taken: dict[str, list[Seconds]] = {name: [] for name in peers}
    for _ in range(rounds):
        for name, peer in peers.items():
            taken[name].append(peer.round())
    return {name: summary(seconds, workload) for name, seconds in taken.items()}


def weight(peer: Peer) -> Tensor:
    """Return a tensor of the global model, which every round must change."""
    if isinstance(peer, Fedtail):  # its network is scratch
        found: Tensor = next(t for t in peer.state.model.values() if t.is_floating_point())
        return found
    return next(peer.network.parameters()).detach()


def summary(seconds: Sequence[Seconds], workload: Workload) -> dict[str, float]:
    """Return medians over rounds, and samples trained for each second."""
    cpu, wall = (median(each) for each in zip(*seconds, strict=True))
    return {
        "round_cpu_seconds": round(cpu, 5),
        "round_wall_seconds": round(wall, 5),
        "samples_per_cpu_second": round(workload.trained / cpu),
        "samples_per_wall_second": round(workload.trained / wall),
    }


def started(name: str) -> dict[str, float]:
    """Return what a fresh process takes until its first round is done, and the most memory."""
    command = [sys.executable, "-m", "benchmarks.peers.measure", "--started", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def start(name: str) -> dict[str, float]:
    """Do the first round in this process, and return what it all took."""
    torch.set_num_threads(1)
    PEERS[name](WORKLOADS[STARTED_ON]).round()
    wall = time.time() - psutil.Process().create_time()
    return {"cpu_seconds": round(time.process_time(), 2), "wall_seconds": round(wall, 2)}


def flower(name: str) -> dict[str, Any]:
    """Return the medians of Flower's rounds after the first, and what the first took."""
    command = [sys.executable, "-m", "benchmarks.peers.measure", "--flower", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"flower: {done.stderr[-2000:]}")
    (clock, began) = json.loads(done.stdout.splitlines()[-1])
    steps = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(clock)]
    # The last one also ends the simulation.
    found: dict[str, Any] = summary(steps[1:-1], WORKLOADS[name])
    first = clock[1]
    found["started"] = {
        "cpu_seconds": round(first[0], 2),
        "wall_seconds": round(first[1] - began, 2),
    }
    return found


def measured(rounds: int) -> dict[str, Any]:
    """Measure everything."""
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    workloads = {}
    for name, workload in WORKLOADS.items():
        print(f"{workload.title} ...", file=sys.stderr, flush=True)
        found = alternating(workload, rounds)
        on_flower = flower(name)
        start_up = on_flower.pop("started")
        workloads[name] = {
            "title": workload.title,
            "parameters": workload.parameters,
            "clients": workload.clients,
            "per_round": workload.per_round,
            "samples_per_client": workload.samples,
            "batch": workload.batch,
            "peers": {**found, "flower": on_flower},
        }
        if name == STARTED_ON:
            starts = {"flower": start_up}
    starts |= {name: started(name) for name in PEERS}
    return {
        "rounds": rounds,
        "threads": 1,
        "load_before": round(load, 2),
        "load_after": round(os.getloadavg()[0], 2),
        "versions": {name: version(package) for name, package in PACKAGES.items()},
        "workloads": workloads,
        "started_on": STARTED_ON,
        "started": {name: starts[name] for name in (*PEERS, "flower")},
    }


def main() -> None:
    """Measure into a file, or do what a fresh process is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, help="where the numbers go")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--started", help="a peer: its first round in this process")
    parser.add_argument("--flower", help="a workload: Flower's rounds on it")
    chosen = parser.parse_args()
    if chosen.started:
        print(json.dumps(start(chosen.started)))
    elif chosen.flower:
        from benchmarks.peers.flower_app import simulate

        clock = simulate(chosen.flower, FLOWER_ROUNDS)
        print(json.dumps([clock, psutil.Process().create_time()]))
    elif chosen.file:
        chosen.file.write_text(json.dumps(measured(chosen.rounds)), encoding="utf-8")
    else:
        parser.error("a file, --started or --flower is needed")


if __name__ == "__main__":
    main()
