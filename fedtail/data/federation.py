"""A federation: one data set in memory, and for each client the positions of its samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedtail.data.augment import Augment, normalised
from fedtail.data.dataset import Dataset, Samples


@dataclass(frozen=True)
class ServerData:
    """Samples that the server holds and no client does."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class ClientData:
    """One client's samples: positions into the shared data, gathered batch by batch."""

    samples: Samples
    positions: Tensor
    labels: Tensor
    mean: Tensor
    std: Tensor
    augment: Augment
    device: torch.device

    def __len__(self) -> int:
        return len(self.positions)

    def batch(
        self, index: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return normalised inputs and labels of some local samples; augmented if a generator is given."""
        x = self.samples.x[self.positions[index]].to(self.device)
        x = normalised(x, self.mean, self.std)
        if generator is not None:
            x = self.augment(x, generator)
        return x, self.labels[index]


class Federation:
    """The data set, and who holds which part of it.

    Positions of all clients lie in one array, client after client, so that a hundred thousand
    clients cost one integer a sample and one offset each.
    """

    def __init__(
        self, dataset: Dataset, parts: Sequence[np.ndarray], augment: Augment | None = None
    ) -> None:
        self.dataset = dataset
        self.augment = augment or Augment()
        self.order = torch.from_numpy(
            np.concatenate([*parts, np.empty(0, np.int64)]).astype(np.int64)
        )
        self.offsets = torch.tensor(
            [0, *np.cumsum([len(part) for part in parts])], dtype=torch.int64
        )
        self.device = torch.device("cpu")
        self.mean, self.std = self._normalisation()

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return self.dataset.num_classes

    def client(self, k: int) -> ClientData:
        """Return client k's data."""
        positions = self.order[self.offsets[k] : self.offsets[k + 1]]
        return ClientData(
            samples=self.dataset.train,
            positions=positions,
            labels=self.dataset.train.y[positions].to(self.device),
            mean=self.mean,
            std=self.std,
            augment=self.augment,
            device=self.device,
        )

    def counts(self, k: int) -> Tensor:
        """Return client k's class counts."""
        positions = self.order[self.offsets[k] : self.offsets[k + 1]]
        return torch.bincount(self.dataset.train.y[positions], minlength=self.num_classes)

    def class_counts(self) -> Tensor:
        """Return the class counts of all clients together."""
        return torch.bincount(self.dataset.train.y[self.order], minlength=self.num_classes)

    def test_batch(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return normalised test inputs and labels from one range."""
        test = self.dataset.test
        x = test.x[torch.arange(start, min(stop, len(test)))].to(self.device)
        return normalised(x, self.mean, self.std), test.y[start:stop].to(self.device)

    def _normalisation(self) -> tuple[Tensor, Tensor]:
        channels = [1, -1] + [1] * (len(self.dataset.input_shape) - 1)
        mean = torch.tensor(self.dataset.mean or (0.0,), dtype=torch.float32)
        std = torch.tensor(self.dataset.std or (1.0,), dtype=torch.float32)
        return mean.reshape(channels), std.reshape(channels)
