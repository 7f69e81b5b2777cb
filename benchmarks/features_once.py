"""How much faster a head on EfficientNet-Lite0 trains where features are computed once.

Both alternate in one process, on the same samples and with the same batches; the body has computed
its features once before. Needs the network (``features.txt``); without it nothing is measured.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from statistics import median

import torch
from torch import Tensor, nn

from benchmarks.backbones import Lite0, available
from benchmarks.results_file import save
from benchmarks.speed import federated_round
from fedtail import IID, Arrays, Experiment, FedAvg, LocalTraining
from fedtail.engines import Embedded
from fedtail.engines.runtime import numerics
from fedtail.setting import Setting, prepare

SAMPLES, CLIENTS, TARGET = 128, 4, 20.0


class Network(nn.Module):
    """The frozen body and a linear head; images have values 0 to 1."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.body = Lite0()
        self.head = nn.Linear(1280, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        logits: Tensor = self.head(self.body(255 * x))
        return logits


def setting_of(features: str) -> Setting:
    """Return a few clients with random images of 32 pixels."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (SAMPLES, 3, 32, 32), generator=generator, dtype=torch.uint8)
    y = torch.randint(0, 10, (SAMPLES,), generator=generator)
    classes = [str(c) for c in range(10)]
    return prepare(
        Experiment(
            data=Arrays(x, y, x[:10], y[:10], classes=classes, normalisation="none"),
            model=Network,
            partition=IID(),
            clients=CLIENTS,
            features=features,
            method=FedAvg(local=LocalTraining(lr=0.01, batch_size=32)),
        )
    ).with_features()


def seconds_of_processor(work: Callable[[], None], times: int = 1) -> float:
    """Return how long it takes this process, on the mean."""
    began = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - began) / times


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    if not available():
        print("not measured: pip install --no-deps --require-hashes -r benchmarks/features.txt")
        return
    settings = [setting_of("anew"), setting_of("memory")]
    with (
        numerics(1),
        closing(Embedded(settings[0].runtime())) as every,
        closing(Embedded(settings[1].runtime())) as once,
    ):
        slow = partial(federated_round, settings[0], every)
        fast = partial(federated_round, settings[1], once)
        slow()
        fast()
        pairs = [
            (seconds_of_processor(slow), seconds_of_processor(fast, 20)) for _ in range(repeats)
        ]
    ratios = [anew / kept for anew, kept in pairs]
    save(
        "features_once",
        {
            "samples_a_second_anew": round(SAMPLES / median(anew for anew, _ in pairs)),
            "samples_a_second_once": round(SAMPLES / median(kept for _, kept in pairs)),
            "ratio": round(median(ratios)),
            "target": TARGET,
        },
    )


if __name__ == "__main__":
    main()
