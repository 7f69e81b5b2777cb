"""The memory of a round, which does not grow with the cohort.

A network of 25 million parameters; every client has one sample and takes one step. A round with 8
clients comes first, in which all that stays is made: gradients, libraries, the next state. Then one
with many. What each process has at the most, beyond what it had at rest between the two, is given
in models of four bytes a parameter. The C library is told to give freed memory back, so that it is
not counted.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import psutil
import torch
from torch import nn

from benchmarks.results_file import save
from fedtail import Arrays, Experiment, FedAvg, LocalTraining
from fedtail.engines import Embedded
from fedtail.engines.runtime import numerics
from fedtail.exchange import Ledger, drive
from fedtail.setting import prepare

WIDTH, LAYERS = 2236, 5
FIRST = 8
EVERY = 0.005  # seconds between two looks
FREED = "MALLOC_MMAP_THRESHOLD_"


def network() -> nn.Module:
    """Return five layers of five million weights each, and a classifier."""
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(nn.Linear(8, WIDTH), nn.ReLU(), *layers, nn.Linear(WIDTH, 2))


def resident() -> dict[int, int]:
    """Return the bytes in memory of this process and its workers."""
    own = psutil.Process()
    # Multiprocessing starts a process that only looks after shared memory.
    workers = [p for p in own.children() if "resource_tracker" not in " ".join(p.cmdline())]
    return {p.pid: p.memory_info().rss for p in (own, *workers)}


@contextmanager
def watched() -> Iterator[dict[int, int]]:
    """Give the most bytes that each process has in this block."""
    most, over = resident(), threading.Event()

    def look() -> None:
        while not over.wait(EVERY):
            for pid, size in resident().items():
                most[pid] = max(most.get(pid, 0), size)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        over.set()
        thread.join()


def measure(clients: int, workers: int) -> dict[str, float]:
    """Hold a small round and a large one."""
    x = torch.randn(clients, 8, generator=torch.Generator().manual_seed(0))
    y = torch.arange(clients) % 2
    experiment = Experiment(
        data=Arrays(x, y, x[:2], y[:2], classes=("a", "b"), normalisation="none"),
        model=network,
        method=FedAvg(local=LocalTraining(lr=0.01, steps=1, batch_size=1)),
        partition="iid",
        clients=clients,
        rounds=2,
        device="cpu",
    )
    with numerics(1):
        setting = prepare(experiment)
        method, state = setting.method, setting.method.init(setting.model, setting.server(0))
        model = 4 * sum(t.numel() for t in state.model.values())
        engine = Embedded(setting.runtime(), workers)
        try:
            server = replace(setting.server(1), per_round=FIRST)
            state = drive(method.round(state, server), state, engine, server, Ledger())
            rest = resident()
            server, began = setting.server(2), time.perf_counter()
            with watched() as most:
                state = drive(method.round(state, server), state, engine, server, Ledger())
            seconds = time.perf_counter() - began
        finally:
            engine.close()
    beyond = {pid: round((most[pid] - size) / model, 2) for pid, size in rest.items()}
    own = beyond.pop(os.getpid())
    return {
        "parameters": model // 4,
        "models_beyond_rest": own,
        **({"models_beyond_rest_of_a_worker": max(beyond.values())} if beyond else {}),
        "seconds_a_client": round(seconds / clients, 3),
    }


if __name__ == "__main__":
    if FREED not in os.environ:
        os.execve(
            sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | {FREED: "1000000"}
        )
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=0)
    chosen = parser.parse_args()
    found = measure(chosen.clients, chosen.workers)
    facts = {"clients": chosen.clients, "workers": chosen.workers, **found}
    save("round_memory", facts, file=f"round_memory_{chosen.workers}_workers")
