"""What a method's clients cost beside FedAvg's, and what its own passes alone would cost.

ResNet-8 of width 16 on random images, ten clients of 64 samples, ten classes of a long tail, one
thread. Every method trains the same clients for one round after another, in turn with FedAvg, and
the processor time of a sample is compared. A hook counts the samples that each of them sends
through the network, with gradients (which come back) and without (which do not). A forward pass and
a step are timed by themselves, so that the passes have a price: what is above it is overhead.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.results_file import save
from fedtail import IID, Arrays, Experiment, LocalTraining
from fedtail.cores import machine_load
from fedtail.data.federation import laid_out
from fedtail.engines import Embedded
from fedtail.engines.runtime import numerics
from fedtail.exchange import Ledger, drive
from fedtail.methods import Method
from fedtail.setting import Setting, prepare

CLIENTS, SAMPLES, BATCH, TARGET = 10, 64, 32, 1.15
METHODS: dict[str, dict[str, Any]] = {
    "fedprox": {},
    "scaffold": {},
    "fedlc": {},
    "balancefl": {},
    "fedvls": {},
    "redgrape": {},
    "creff": {"match_steps": 0, "head_epochs": 0},  # its clients; the server has its own benchmark
    "climb": {},
    "gbme": {},
    "paco": {},
}


@dataclass
class Passes:
    """Samples that went through the network."""

    with_gradients: int = 0
    without: int = 0

    def watch(self, layer: nn.Module) -> None:
        """Count every batch that comes to a layer, or to a copy of it."""

        def count(layer: nn.Module, args: tuple[Tensor, ...]) -> None:
            if torch.is_grad_enabled():
                self.with_gradients += len(args[0])
            else:
                self.without += len(args[0])

        layer.register_forward_pre_hook(count)  # a function, which a copied layer shares


class Trial:
    """One method on the federation, round after round."""

    def __init__(self, name: str, fields: dict[str, Any], x: Tensor, y: Tensor) -> None:
        local = LocalTraining(lr=0.01, batch_size=BATCH)
        self.setting: Setting = prepare(
            Experiment(
                data=Arrays(x, y, x[:100], y[:100], classes=[str(c) for c in range(10)]),
                model={"name": "resnet8", "width": 16},
                partition=IID(),
                clients=CLIENTS,
                together=0,
                method=Method.model_validate({"name": name, "local": local, **fields}),
            )
        )
        self.engine = Embedded(self.setting.runtime())
        self.passes = Passes()
        first = next(m for m in self.setting.model.modules() if isinstance(m, nn.Conv2d))
        self.passes.watch(first)
        self.number, method = 0, self.setting.method
        server = self.setting.server(0)
        state = method.init(self.setting.model, server)
        self.state = drive(method.setup(state, server), state, self.engine, server, Ledger())

    def round(self) -> float:
        """Hold one round, and return its processor time."""
        self.number += 1
        server = self.setting.server(self.number)
        began = time.process_time()
        exchange = self.setting.method.round(self.state, server)
        self.state = drive(exchange, self.state, self.engine, server, Ledger())
        return time.process_time() - began


def prices(setting: Setting, x: Tensor, y: Tensor, repeats: int) -> tuple[float, float]:
    """Return the processor time of a sample in a step, and in a forward pass without gradients."""
    network = setting.model.module.train()
    x = laid_out(x[:BATCH].to(torch.float32).div(255), setting.federation.channels_last)

    def forward() -> None:
        with torch.no_grad():
            network(x)

    def step() -> None:
        network.zero_grad()
        torch.autograd.backward(functional.cross_entropy(network(x), y[:BATCH]))

    return low(step, repeats) / BATCH, low(forward, repeats) / BATCH


def low(work: Callable[[], None], repeats: int) -> float:
    """Return the tenth percentile of its processor time."""
    times = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return sorted(times)[len(times) // 10]


def cost(name: str, x: Tensor, y: Tensor, rounds: int) -> dict[str, Any]:
    """Return what a trained sample costs with a method, in those of FedAvg, and why."""
    ours, plain = Trial(name, METHODS[name], x, y), Trial("fedavg", {}, x, y)
    for _ in range(2):  # prototypes and the like are there from the second round on
        ours.round()
        plain.round()
    before = Passes(ours.passes.with_gradients, ours.passes.without)
    pairs = [(ours.round(), plain.round()) for _ in range(rounds)]
    trained = (ours.passes.with_gradients - before.with_gradients) / rounds
    seen = (ours.passes.without - before.without) / rounds
    step, forward = prices(plain.setting, x, y, 4 * rounds)
    own, fedavg = (sorted(times)[rounds // 10] for times in zip(*pairs, strict=True))
    return report(name, own / trained, fedavg / (CLIENTS * SAMPLES), seen / trained, forward / step)


def report(name: str, own: float, fedavg: float, seen: float, forward: float) -> dict[str, Any]:
    """Return the line of one method.

    Parameters
    ----------
    name
        The method.
    own, fedavg
        Processor seconds of a trained sample.
    seen
        Samples of forward passes without gradients, for each one that is trained.
    forward
        What such a pass costs, in steps.
    """
    passes = 1 + seen * forward
    return {
        "method": name,
        "over_fedavg": round(own / fedavg, 2),
        "forward_passes": round(seen, 2),
        "passes_alone": round(passes, 2),
        "overhead": round(own / fedavg / passes, 2),
        "target": TARGET,
    }


def data() -> tuple[Tensor, Tensor]:
    """Return random images, with classes that halve in size from two to two."""
    generator = torch.Generator().manual_seed(0)
    shape = (CLIENTS * SAMPLES, 3, 32, 32)
    x = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    share = 2.0 ** -(torch.arange(10) / 2)
    return x, torch.multinomial(share, len(x), replacement=True, generator=generator)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6, help="pairs of rounds of each method")
    parser.add_argument("--only", choices=METHODS, help="one method, printed and not saved")
    chosen = parser.parse_args(arguments)
    x, y = data()
    with numerics(1):
        measure = partial(cost, x=x, y=y, rounds=chosen.rounds)
        if chosen.only:
            print(measure(chosen.only))
            return
        lines = [measure(name) for name in METHODS]
    save("methods_cost", {"methods": lines, "load_of_the_machine_afterwards": machine_load()})


if __name__ == "__main__":
    main()
