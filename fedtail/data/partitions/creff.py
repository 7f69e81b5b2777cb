"""The split of CReFF: balanced Dirichlet in groups of ten, then cut again into equal blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from fedtail.data.partitions.base import Labels, Partition
from fedtail.data.partitions.common import MOST_ALPHA, check_clients
from fedtail.data.partitions.dirichlet import BalancedDirichlet

GROUP = 10


@Partition.register("creff")
class CReFFSplit(Partition):
    """Equal sizes, Dirichlet skew inside groups of ten clients (CReFF, IJCAI 2022).

    All samples are shuffled and dealt to groups of ten clients. Inside a group the classes are
    shared out as in `dirichlet-balanced`, with half an equal share as the smallest size. The lists
    of all clients are laid end to end and cut again into K equal blocks, so that every client holds
    floor(N/K) samples or one more, and neighbours mix. The authors' code needs ten clients; here
    fewer form one group.
    """

    alpha: float = Field(
        default=0.5,
        gt=0,
        le=MOST_ALPHA,
        description="concentration: small is skewed, large is nearly IID",
    )

    def split(self, labels: Labels, clients: int, rng: np.random.Generator) -> Sequence[np.ndarray]:
        """Return for each client the positions of its samples."""
        check_clients(labels, clients)
        order = rng.permutation(len(labels.y))
        members = [min(GROUP, clients - first) for first in range(0, clients, GROUP)]
        edges = np.cumsum(members)[:-1] * len(order) // clients
        laid = [
            group[self._laid(Labels(labels.y[group], labels.num_classes), count, rng)]
            for group, count in zip(np.split(order, edges), members, strict=True)
        ]
        return [np.sort(block) for block in np.array_split(np.concatenate(laid), clients)]

    def _laid(self, group: Labels, clients: int, rng: np.random.Generator) -> np.ndarray:
        """Return the positions of one group: client after client, class after class."""
        half = max(1, len(group.y) // (2 * clients))
        parts = BalancedDirichlet(alpha=self.alpha, min_size=half).split(group, clients, rng)
        return np.concatenate([part[np.argsort(group.y[part], kind="stable")] for part in parts])
