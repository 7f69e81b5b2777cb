"""How much of a bare training loop's speed the embedded engine keeps, without batching clients.

The bare loop trains the same network on the same samples in the same batches, with its inputs
already normalised in memory, a new optimiser for each client, and neither messages nor an average.
Both alternate in one process, one thread each. What counts are samples per processor second, of
each the tenth percentile of the times, so that what else the machine does counts least.
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
from fedtail.cores import machine_load
from fedtail.data.federation import laid_out
from fedtail.engines import Embedded
from fedtail.engines.runtime import numerics
from fedtail.exchange import Ledger, drive
from fedtail.models.mlp import MLP
from fedtail.models.spec import ModelSpec
from fedtail.setting import Setting, prepare

RATE = 0.01


@dataclass(frozen=True)
class Case:
    """One network on random images of its size; at least `target` of the bare loop's speed.

    Attributes
    ----------
    samples
        Of all clients together.
    pairs
        How often both are run.
    """

    name: str
    model: str | ModelSpec
    shape: tuple[int, ...]
    samples: int
    target: float
    clients: int = 10
    batch: int = 32
    pairs: int = 40

    @property
    def local(self) -> LocalTraining:
        """How clients train."""
        return LocalTraining(lr=RATE, batch_size=self.batch)


CASES = [
    Case("logistic", MLP(hidden=()), (1, 8, 8), 1000, 0.85, clients=50, batch=10),
    Case("digits_cnn", "digits_cnn", (1, 8, 8), 1000, 0.95, clients=50, batch=10),
    Case("cnn", "cnn", (1, 28, 28), 3200, 0.95, pairs=7),
    Case("resnet8", "resnet8", (3, 32, 32), 640, 0.95, pairs=5),
]

POOL = Case("resnet8", "resnet8", (3, 32, 32), 1280, 1.1, pairs=7)


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
            together=0,
            method=FedAvg(local=case.local),
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
        for client in range(case.clients):
            optimizer = torch.optim.SGD(network.parameters(), lr=RATE)
            for index in torch.split(torch.randperm(size) + client * size, case.batch):
                optimizer.zero_grad()
                loss = functional.cross_entropy(network(x[index]), train.y[index])
                torch.autograd.backward(loss)
                optimizer.step()

    return loop


def seconds(work: Callable[[], None], clock: Callable[[], float] = time.process_time) -> float:
    """Return how long it takes, of the processor if nothing else is said."""
    began = clock()
    work()
    return clock() - began


def against_bare(case: Case) -> dict[str, float | str]:
    """Return the engine's samples a second beside the bare loop's, one thread each."""
    setting = setting_of(case, threads=1)
    bare = bare_loop(setting, case)
    with numerics(1), closing(Embedded(setting.runtime())) as engine:
        ours = partial(federated_round, setting, engine)
        ours()
        bare()
        pairs = [(seconds(bare), seconds(ours)) for _ in range(case.pairs)]
    rates = [case.samples / sorted(times)[len(times) // 10] for times in zip(*pairs, strict=True)]
    return {
        "model": case.name,
        "bare": round(rates[0]),
        "engine": round(rates[1]),
        "ratio": round(rates[1] / rates[0], 3),
        "target": case.target,
    }


def pool_against_threads() -> dict[str, float]:
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
        wall = partial(seconds, clock=time.perf_counter)
        ratios = [wall(one) / wall(two) for _ in range(POOL.pairs)]
    return {"ratio": round(median(ratios), 3), "target": POOL.target}


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", choices=[case.name for case in CASES], help="one network, unsaved"
    )
    parser.add_argument("--no-pool", action="store_true", help="leave out what takes longest")
    chosen = parser.parse_args()
    if chosen.only:
        print(*(against_bare(case) for case in CASES if case.name == chosen.only))
        return
    bare = [against_bare(case) for case in CASES]
    numbers = {
        "samples_per_processor_second": bare,
        "load_of_the_machine_afterwards": machine_load(),
    }
    pool = {} if chosen.no_pool else {"pool_over_threads": pool_against_threads()}
    save("speed", {**numbers, **pool})


if __name__ == "__main__":
    main()
