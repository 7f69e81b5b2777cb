"""What a partition is: labels in, one index array a client out, in bounded time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedtail.config import Component, Registry
from fedtail.errors import FedtailError


@dataclass(frozen=True)
class Labels:
    """The samples to be shared out, by label.

    Attributes
    ----------
    y
        Labels of the samples that are left after the long-tail cut.
    num_classes
        How many classes there are; some may have no sample.
    owner
        Each sample's natural client, where the data has one.
    """

    y: np.ndarray
    num_classes: int
    owner: np.ndarray | None = None

    def at(self, positions: np.ndarray) -> Labels:
        """Return the samples at some positions."""
        owner = None if self.owner is None else self.owner[positions]
        return Labels(self.y[positions], self.num_classes, owner)

    def counts(self) -> np.ndarray:
        """Return how many samples each class has."""
        return np.bincount(self.y, minlength=self.num_classes)


class Partition(Component):
    """A named way to share samples out. Its fields are its parameters."""

    registry: ClassVar[Registry[Partition]] = Registry("partition")

    def split(self, labels: Labels, clients: int, rng: np.random.Generator) -> Sequence[np.ndarray]:
        """Return for each client the positions (into `labels.y`) of its samples."""
        raise FedtailError(f"partition '{self.name}' is abstract")

    def all_clients(self, labels: Labels) -> int:
        """Return how many clients there are when nobody says; most schemes cannot know."""
        raise FedtailError(
            f"partition '{self.name}' needs the number of clients, for example clients=20"
        )
