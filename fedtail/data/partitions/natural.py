"""The clients that the data itself names."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedtail.data.partitions.base import Labels, Partition
from fedtail.data.partitions.common import check_clients
from fedtail.data.parts import Parts
from fedtail.errors import FedtailError


@Partition.register("natural")
class Natural(Partition):
    """One client for each writer, speaker, patient or person of the data.

    FEMNIST by writer (RedGrape, FedLC), Synthetic(λ, μ) by user (RedGrape, FedLC), IMU by person
    (BalanceFL). Clients come in the order of their numbers. A smaller number of clients than the
    data has means a seeded draw of that many; the samples of the others are left out.
    """

    def split(self, labels: Labels, clients: int, rng: np.random.Generator) -> Sequence[np.ndarray]:
        """Return for each client the positions of its samples."""
        check_clients(labels, clients)
        number, found = _numbered(self._owner(labels))
        if clients > found:
            raise FedtailError(
                f"{clients} clients were asked for but the data has only {found} natural "
                f"clients (allowed: 1 to {found})"
            )
        parts = Parts.by_owner(number, found)
        if clients == found:
            return parts
        chosen = np.sort(rng.choice(found, size=clients, replace=False))
        return [parts[k] for k in chosen.tolist()]

    def all_clients(self, labels: Labels) -> int:
        """Return how many natural clients hold a sample."""
        return _numbered(self._owner(labels))[1]

    def _owner(self, labels: Labels) -> np.ndarray:
        if labels.owner is None:
            raise FedtailError(
                "partition 'natural' needs data with natural clients, and this data names none; "
                "choose another partition such as 'dirichlet'"
            )
        return labels.owner


def _numbered(owner: np.ndarray) -> tuple[np.ndarray, int]:
    """Return each sample's client as a number from 0 without gaps, and how many there are."""
    if owner.dtype.kind in "ui" and owner.size and 0 <= owner.min() <= owner.max() < len(owner):
        # Sources number clients from 0: counting is enough, where sorting takes seconds.
        there = np.bincount(owner) > 0
        number = owner if there.all() else (np.cumsum(there) - 1)[owner]
        return number.astype(np.int64, copy=False), int(there.sum())
    found, number = np.unique(owner, return_inverse=True)
    return number.reshape(-1), len(found)
