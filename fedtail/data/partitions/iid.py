"""No skew at all."""

from __future__ import annotations

import numpy as np

from fedtail.data.partitions.base import Labels, Partition
from fedtail.data.partitions.common import check_clients


@Partition.register("iid")
class IID(Partition):
    """A random permutation cut into K parts of equal size, or one more (GBME, Table 7)."""

    def split(self, labels: Labels, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Return for each client the positions of its samples."""
        check_clients(labels, clients)
        return [np.sort(part) for part in np.array_split(rng.permutation(len(labels.y)), clients)]
