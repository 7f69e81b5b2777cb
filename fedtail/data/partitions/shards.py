"""Quantity-based label skew: a fixed number of shards, or of classes, for each client."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from fedtail.data.partitions.base import Labels, Partition
from fedtail.data.partitions.common import by_class, check_clients, repaired, tries
from fedtail.data.parts import Parts
from fedtail.errors import FedtailError

CLIENTS_AT_ONCE = 1000
"""Clients whose classes are drawn at a time: the draws of all need sixteen times the memory."""


@Partition.register("shards")
class Shards(Partition):
    """Q(α) of FedLC: sort by label, cut into K·α shards, deal α shards to every client.

    A client can get several shards of one class, and a shard can straddle two classes. Where the
    shards do not divide the samples, FL-bench drops the rest; here the shards differ by one sample
    and nothing is lost.
    """

    per_client: int = Field(default=2, ge=1, description="shards that each client gets (α)")

    def split(self, labels: Labels, clients: int, rng: np.random.Generator) -> Sequence[np.ndarray]:
        """Return for each client the positions of its samples."""
        check_clients(labels, clients)
        row = np.concatenate(by_class(labels, rng))
        # Beyond one sample a shard, further shards would be empty.
        shards = clients * min(self.per_client, max(1, len(row) // clients))
        dealt = rng.permutation(np.repeat(np.arange(clients), shards // clients))
        lengths = np.full(shards, len(row) // shards)
        lengths[: len(row) % shards] += 1
        client = np.empty(len(row), dtype=np.int64)
        client[row] = np.repeat(dealt, lengths)
        return Parts.by_owner(client, clients)


@Partition.register("pathological")
class Pathological(Partition):
    """k classes for each client (GBME; NIID-Bench's "#C = k").

    Each client draws k distinct classes and every class is split equally among its holders. Where
    a class finds no holder in a limited number of draws, a holder of the most held class takes it
    instead. A client whose classes have too few samples for all their holders is given one sample
    by the largest client.
    """

    classes_per_client: int = Field(
        default=2, ge=1, description="classes that each client holds (all of them, if more)"
    )

    def split(self, labels: Labels, clients: int, rng: np.random.Generator) -> Sequence[np.ndarray]:
        """Return for each client the positions of its samples."""
        check_clients(labels, clients)
        present = np.flatnonzero(labels.counts())
        width = min(self.classes_per_client, len(present))
        if clients * width < len(present):
            raise FedtailError(
                f"{clients} clients with {width} classes each cannot hold all {len(present)} "
                f"classes; use more clients or a larger classes_per_client"
            )
        holds = _draw_holders(clients, len(present), width, rng)
        positions = by_class(labels, rng)
        client = np.empty(len(labels.y), dtype=np.int64)
        for column, c in enumerate(present.tolist()):
            holders = rng.permutation(np.flatnonzero(holds[:, column]))
            lots = np.array_split(positions[c], len(holders))
            client[positions[c]] = np.repeat(holders, [len(lot) for lot in lots])
        return Parts.by_owner(repaired(client, labels, clients, 1), clients)


def _draw_holders(clients: int, classes: int, width: int, rng: np.random.Generator) -> np.ndarray:
    """Return which client (rows) holds which class (columns); every class has a holder."""
    for _ in range(tries(clients, classes)):
        holds = np.zeros((clients, classes), dtype=bool)
        for rows in np.split(holds, range(CLIENTS_AT_ONCE, clients, CLIENTS_AT_ONCE)):
            drawn = np.argsort(rng.random(rows.shape), axis=1)[:, :width]
            np.put_along_axis(rows, drawn, True, axis=1)
        holders = holds.sum(axis=0)
        if holders.all():
            break
    for orphan in np.flatnonzero(holders == 0).tolist():
        # clients * width >= classes: while one class has no holder, another has at least two.
        spare = int(holders.argmax())
        holder = int(holds[:, spare].argmax())
        holds[holder, [spare, orphan]] = False, True
        holders[[spare, orphan]] += -1, 1
    return holds
