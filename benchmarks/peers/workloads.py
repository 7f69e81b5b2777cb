"""What everybody trains: four networks on random samples, the same for all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedtail.models import ModelSpec, build

CLASSES = 10
LR = 0.01


def mnist_cnn() -> nn.Module:
    """Return the CNN of McMahan et al. 2017 for 28 x 28 images."""
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, CLASSES)),
    )


def described(spec: dict[str, object], shape: tuple[int, ...]) -> Callable[[], nn.Module]:
    """Return what builds one of this library's networks, as a plain module."""
    return lambda: build(ModelSpec.model_validate(spec), shape, CLASSES).module


@dataclass(frozen=True)
class Workload:
    """A network and a federation of clients with equally many samples, one epoch a round."""

    title: str
    network: Callable[[], nn.Module]
    parameters: int
    shape: tuple[int, ...]
    clients: int
    per_round: int
    samples: int
    batch: int

    @property
    def trained(self) -> int:
        """How many samples a round trains on."""
        return self.per_round * self.samples

    def build(self) -> nn.Module:
        """Return the network, with the same weights for everybody and the agreed size."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            network = self.network()
        found = sum(p.numel() for p in network.parameters())
        if found != self.parameters:
            raise ValueError(f"{self.title} has {found} parameters, not {self.parameters}")
        return network

    def data(self) -> tuple[Tensor, Tensor]:
        """Return the samples of all clients, one client after the other, in memory as floats."""
        draw = torch.Generator().manual_seed(1)
        size = self.clients * self.samples
        x = torch.rand(size, *self.shape, generator=draw)
        return x, torch.randint(0, CLASSES, (size,), generator=draw)

    def of_client(self, k: int) -> slice:
        """Return where a client's samples are."""
        return slice(k * self.samples, (k + 1) * self.samples)


WORKLOADS = {
    "logistic": Workload(
        "logistic", described({"name": "mlp", "hidden": ()}, (64,)), 650, (64,), 100, 50, 20, 10
    ),
    "digits_cnn": Workload(
        "8×8 CNN",
        described({"name": "digits_cnn"}, (1, 8, 8)),
        13_706,
        (1, 8, 8),
        *(20, 10, 100, 10),
    ),
    "mnist_cnn": Workload("MNIST CNN", mnist_cnn, 1_663_370, (1, 28, 28), 20, 5, 64, 32),
    "resnet8": Workload(
        "ResNet-8, width 16",
        described({"name": "resnet8", "width": 16}, (3, 32, 32)),
        78_042,
        (3, 32, 32),
        *(20, 5, 32, 32),
    ),
}
