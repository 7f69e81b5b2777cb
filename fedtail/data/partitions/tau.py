"""The split of BalanceFL: equal sizes, classes dealt out in small lots from the rarest on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from fedtail.data.partitions.base import Labels, Partition
from fedtail.data.partitions.common import by_class, check_clients


@Partition.register("tau")
class TauSampling(Partition):
    """τ-sampling (BalanceFL, IPSN 2022): a larger tau means that clients miss more classes.

    The samples lie in one row, class by class, from the rarest class to the most frequent. Every
    client may hold N/K of them (one more or less). The clients take turns, in order at first and
    in a fresh random order after every pass, and each takes the next int(tau * n_min) samples
    until it is full; n_min is the size of the rarest class. With tau = 1 the rarest class sits on
    one client.
    """

    tau: float = Field(
        default=1.0, gt=0, description="lot that a client takes, in sizes of the rarest class"
    )

    def split(self, labels: Labels, clients: int, rng: np.random.Generator) -> Sequence[np.ndarray]:
        """Return for each client the positions of its samples."""
        check_clients(labels, clients)
        counts = labels.counts()
        classes = by_class(labels, rng)
        row = np.concatenate([classes[c] for c in np.argsort(counts, kind="stable")])
        lot = max(1, int(self.tau * counts[counts > 0].min()))
        takers, lots = self._turns(len(row), clients, lot, rng)
        ends = np.cumsum(lots).tolist()
        blocks: list[list[np.ndarray]] = [[] for _ in range(clients)]
        for k, start, end in zip(takers, [0, *ends[:-1]], ends, strict=True):
            blocks[k].append(row[start:end])
        return [np.sort(np.concatenate(block)) for block in blocks]

    @staticmethod
    def _turns(
        samples: int, clients: int, lot: int, rng: np.random.Generator
    ) -> tuple[list[int], list[int]]:
        """Return who takes, turn after turn, and how many."""
        room = [samples // clients + (k < samples % clients) for k in range(clients)]
        takers: list[int] = []
        lots: list[int] = []
        order = list(range(clients))
        while order:
            for k in order:
                takers.append(k)
                lots.append(min(lot, room[k]))
                room[k] -= lots[-1]
            order = [k for k in rng.permutation(clients).tolist() if room[k]]
        return takers, lots
