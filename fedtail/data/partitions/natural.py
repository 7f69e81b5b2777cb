"""The clients that the data itself names."""

from __future__ import annotations

import numpy as np

from fedtail.data.partitions.base import Labels, Partition
from fedtail.data.partitions.common import check_clients, parts_of
from fedtail.errors import FedtailError


@Partition.register("natural")
class Natural(Partition):
    """One client for each writer, speaker, patient or person of the data.

    FEMNIST by writer (RedGrape, FedLC), Synthetic(λ, μ) by user (RedGrape, FedLC), IMU by person
    (BalanceFL). Clients come in the order of their numbers. A smaller number of clients than the
    data has means a seeded draw of that many; the samples of the others are left out.
    """

    def split(self, labels: Labels, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Return for each client the positions of its samples."""
        check_clients(labels, clients)
        found, number = np.unique(self._owner(labels), return_inverse=True)
        if clients > len(found):
            raise FedtailError(
                f"{clients} clients were asked for but the data has only {len(found)} natural "
                f"clients (allowed: 1 to {len(found)})"
            )
        parts = parts_of(number.reshape(-1), len(found))
        if clients == len(found):
            return parts
        chosen = np.sort(rng.choice(len(found), size=clients, replace=False))
        return [parts[k] for k in chosen.tolist()]

    def all_clients(self, labels: Labels) -> int:
        """Return how many natural clients hold a sample."""
        return len(np.unique(self._owner(labels)))

    def _owner(self, labels: Labels) -> np.ndarray:
        if labels.owner is None:
            raise FedtailError(
                "partition 'natural' needs data with natural clients, and this data names none; "
                "choose another partition such as 'dirichlet'"
            )
        return labels.owner
