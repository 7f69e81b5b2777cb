"""How much of a bare training loop's speed the embedded engine keeps.

The bare loop trains the same network on the same samples in the same batches, with its inputs
already normalised in memory. Both alternate in one process, and the median of the ratios counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch
from torch import nn
from torch.nn import functional

from benchmarks.results_file import save
from fedtail import IID, Arrays, Experiment, FedAvg, LocalTraining
from fedtail.data.federation import laid_out
from fedtail.engines import Embedded
from fedtail.engines.runtime import numerics
from fedtail.exchange import Ledger, drive
from fedtail.setting import Setting, prepare

LOCAL = LocalTraining(lr=0.01, batch_size=32)


@dataclass(frozen=True)
class Case:
    """One network on random images of its size; at least `target` of the bare loop's speed."""

    model: str
    shape: tuple[int, ...]
    samples: int
    epochs: int
    target: float
    clients: int = 10


CASES = [
    Case("resnet8", (3, 32, 32), 640, 1, 0.95),
    Case("cnn", (1, 28, 28), 3200, 1, 0.95),
    Case("digits_cnn", (1, 8, 8), 3200, 2, 0.8),
]

POOL = Case("resnet8", (3, 32, 32), 1280, 1, 1.1)


def setting_of(case: Case, threads: int) -> Setting:
    """Return a federation of random images, equally many for each client."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (case.samples, *case.shape), generator=generator, dtype=torch.uint8)
    y = torch.randint(0, 10, (case.samples,), generator=generator)
    return prepare(
        Experiment(
            data=Arrays(x, y, x[:100], y[:100], classes=[str(c) for c in range(10)]),
            model=case.model,
            partition=IID(),
            clients=case.clients,
            threads=threads,
            method=FedAvg(local=LOCAL.but(epochs=case.epochs)),
        )
    )


def federated_round(setting: Setting, engine: Embedded) -> None:
    """Train all clients and average."""
    server = setting.server(1)
    state = setting.method.init(setting.model, server)
    drive(setting.method.round(state, server), state, engine, server, Ledger())


def bare_loop(setting: Setting, case: Case) -> Callable[[], None]:
    """Return a plain PyTorch loop over the same samples, network and batches."""
    train = setting.federation.train
    x = train.x[torch.arange(len(train))].to(torch.float32).div(255)
    x = laid_out(x, setting.federation.channels_last)
    network: nn.Module = setting.model.module
    size = len(train) // case.clients

    def loop() -> None:
        network.train()
        for _ in range(case.clients):
            optimizer = torch.optim.SGD(network.parameters(), lr=LOCAL.lr)
            for _ in range(case.epochs):
                for index in torch.split(torch.randperm(size), LOCAL.batch_size):
                    optimizer.zero_grad()
                    loss = functional.cross_entropy(network(x[index]), train.y[index])
                    torch.autograd.backward(loss)
                    optimizer.step()

    return loop


def seconds(work: Callable[[], None]) -> float:
    """Return how long it takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def against_bare(case: Case, repeats: int) -> dict[str, float | str]:
    """Return the engine's throughput over the bare loop's, one thread each."""
    setting = setting_of(case, threads=1)
    bare = bare_loop(setting, case)
    with numerics(1), closing(Embedded(setting.runtime())) as engine:
        ours = partial(federated_round, setting, engine)
        ours()
        bare()
        ratios = [seconds(bare) / seconds(ours) for _ in range(repeats)]
    return {"model": case.model, "ratio": round(median(ratios), 3), "target": case.target}


def pool_against_threads(repeats: int) -> dict[str, float]:
    """Return the throughput of two one-thread workers over one two-thread process, ResNet-8."""
    setting = setting_of(POOL, threads=1)
    with (
        numerics(2),
        closing(Embedded(setting.runtime())) as alone,
        closing(Embedded(setting.runtime(), workers=2, threads=1)) as pool,
    ):
        one, two = (partial(federated_round, setting, engine) for engine in (alone, pool))
        one()
        two()
        ratios = [seconds(one) / seconds(two) for _ in range(repeats)]
    return {"ratio": round(median(ratios), 3), "target": POOL.target}


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    bare = [against_bare(case, repeats) for case in CASES]
    save(
        "speed", {"engine_over_bare_loop": bare, "pool_over_threads": pool_against_threads(repeats)}
    )


if __name__ == "__main__":
    main()
