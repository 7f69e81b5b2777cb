"""Label skew drawn class by class from a Dirichlet distribution over the clients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from fedtail.data.partitions.base import Labels, Partition
from fedtail.data.partitions.common import (
    MOST_ALPHA,
    apportion,
    attainable,
    by_class,
    check_clients,
    dirichlet,
    repaired,
    tries,
)
from fedtail.data.parts import Parts


@Partition.register("dirichlet")
class Dirichlet(Partition):
    """Each class is cut by its own draw p ~ Dir(alpha, ..., alpha) over the clients.

    The form FedLC describes, and the usual one in NIID-Bench and FL-bench. Small alpha means strong
    skew in labels and in sizes. The papers draw again until the smallest client holds `min_size`
    samples; here a limited number of draws is followed by a repair that moves samples from the
    largest clients. Where ``min_size * clients`` exceeds the samples there are, the minimum is
    lowered to an equal share.
    """

    alpha: float = Field(
        default=0.5,
        gt=0,
        le=MOST_ALPHA,
        description="concentration: small is skewed, large is nearly IID",
    )
    min_size: int = Field(default=10, ge=1, description="samples that every client holds at least")

    def split(self, labels: Labels, clients: int, rng: np.random.Generator) -> Sequence[np.ndarray]:
        """Return for each client the positions of its samples."""
        check_clients(labels, clients)
        minimum = attainable(self.min_size, len(labels.y), clients)
        return Parts.by_owner(self._assign(labels, clients, minimum, rng), clients)

    def _assign(
        self, labels: Labels, clients: int, minimum: int, rng: np.random.Generator
    ) -> np.ndarray:
        sizes = labels.counts()
        # Only the counts are drawn again: positions are shuffled once, for the draw that is kept.
        for _ in range(tries(clients, labels.num_classes)):
            counts = self._counts(sizes, clients, rng)
            if counts.sum(axis=0).min() >= minimum:
                break
        client = np.empty(len(labels.y), dtype=np.int64)
        for positions, row in zip(by_class(labels, rng), counts, strict=True):
            if len(positions):
                client[positions] = np.repeat(np.arange(clients), row)
        return repaired(client, labels, clients, minimum)

    def _counts(self, sizes: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        """Draw how many samples of each class (rows) each client (columns) holds."""
        shares = dirichlet(rng, np.full(clients, self.alpha), rows=len(sizes))
        counts = np.empty(shares.shape, dtype=np.int64)
        for c, size in enumerate(sizes.tolist()):  # all at once would take three times the memory
            counts[c] = apportion(shares[c], size)
        return counts


@Partition.register("dirichlet-balanced")
class BalancedDirichlet(Dirichlet):
    """Dirichlet skew that evens out the sizes: clients with an equal share get no more.

    Used by GBME (from FedML) and by PFLlib. Classes are dealt in order; for each one the draw is
    set to zero for the clients that already hold N/K samples, and renormalised.
    """

    def _counts(self, sizes: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        shares = dirichlet(rng, np.full(clients, self.alpha), rows=len(sizes))
        held = np.zeros(clients, dtype=np.int64)
        counts = np.zeros((len(sizes), clients), dtype=np.int64)
        equal, tiny = -(-sizes.sum() // clients), np.finfo(float).tiny
        for c in np.flatnonzero(sizes).tolist():  # a small group lacks most of many classes
            full = held >= equal
            share = np.where(full, 0.0, shares[c])
            mass = share.sum()
            if mass == 0.0:
                # All of a very small alpha's mass fell on full clients: its limit, one open client.
                mass = share[rng.choice(np.flatnonzero(~full))] = 1.0
            counts[c] = apportion(share / max(mass, tiny), sizes[c])
            held += counts[c]
        return counts
