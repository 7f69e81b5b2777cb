"""No skew at all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedtail.data.partitions.base import Labels, Partition
from fedtail.data.partitions.common import check_clients
from fedtail.data.parts import Parts


@Partition.register("iid")
class IID(Partition):
    """A random permutation cut into K parts of equal size, or one more (GBME, Table 7)."""

    def split(self, labels: Labels, clients: int, rng: np.random.Generator) -> Sequence[np.ndarray]:
        """Return for each client the positions of its samples."""
        check_clients(labels, clients)
        drawn = rng.permutation(len(labels.y))
        size, more = divmod(len(drawn), clients)
        sizes = np.full(clients, size)
        sizes[:more] += 1
        owner = np.empty(len(drawn), np.int64)
        owner[drawn] = np.repeat(np.arange(clients), sizes)
        return Parts.by_owner(owner, clients)
