"""Training samples a second of each network, on one thread: what `fedtail reproduce --list` needs.

    python -m benchmarks.models

It writes ``papers/speeds.json``. A step is forward, backward and SGD on a batch of the papers'
size; the time of the fastest of several repeats counts, since others may use the machine.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from torch.nn import functional

from benchmarks.results_file import save
from fedtail.described import parse_overrides
from fedtail.device import runs_on_images
from fedtail.files import write_atomic
from fedtail.models import ModelSpec
from fedtail.reproduce.recipe import papers_folder
from fedtail.rng import contained

MNIST, CIFAR, LARGE = (1, 28, 28), (3, 32, 32), (3, 224, 224)
NETWORKS = {
    "mlp": ((60,), 10, 32),
    "mlp,hidden=[]": ((60,), 10, 32),
    "balancefl_dnn": ((1800,), 8, 64),
    "cnn": (MNIST, 10, 64),
    "small_cnn,width=8,norm=batch": (CIFAR, 10, 64),
    "resnet8": (CIFAR, 10, 32),
    "resnet8,width=16": (CIFAR, 10, 32),
    "resnet32": (CIFAR, 100, 64),
    "resnet32_experts": (CIFAR, 100, 64),
    "resnet56": (CIFAR, 10, 64),
    "balancefl_resnet8": (CIFAR, 10, 64),
    "resnet18": (CIFAR, 10, 64),
    "resnet50": (LARGE, 1000, 8),
    "resnext50": (LARGE, 1000, 8),
}


def main() -> None:
    """Measure every network and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="steps that are timed")
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    speeds = {name: round(speed(name, repeats), 1) for name in NETWORKS}
    write_atomic(papers_folder() / "speeds.json", json.dumps(speeds, indent=1) + "\n")
    save("models", {"samples_per_second_of_one_thread": speeds})


def speed(name: str, repeats: int) -> float:
    """Return the samples a second that one network trains."""
    shape, classes, batch = NETWORKS[name]
    kind, *fields = name.split(",")
    with contained(0):
        spec = ModelSpec.registry[kind].model_validate(dict(parse_overrides(fields)))
        model = spec.build(shape, classes)
    x = torch.randn(batch, *shape, generator=torch.Generator().manual_seed(0))
    if runs_on_images(model, torch.device("cpu")):
        model = model.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    y = torch.arange(batch) % classes
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        optimizer.zero_grad()
        torch.autograd.backward(functional.cross_entropy(model(x), y))
        optimizer.step()
        times.append(time.perf_counter() - start)
    return batch / min(times[1:])


if __name__ == "__main__":
    main()
