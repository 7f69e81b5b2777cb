"""The split of RedGrape: equal sizes, each client's class mix drawn around the global one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from fedtail.data.partitions.base import Labels, Partition
from fedtail.data.partitions.common import MOST_ALPHA, by_class, check_clients, dirichlet
from fedtail.data.parts import Parts


@Partition.register("redgrape")
class RedGrapeSplit(Partition):
    """Label skew of FedNLP as RedGrape uses it: q ~ Dir(alpha * global class prior) per client.

    Every client holds floor(N/K) samples, the last one also the rest. Client after client draws q
    and takes round(q_c * size) samples of class c, class after class; the last class fills the
    room that is left. What a class no longer has is replaced by the other classes in proportion to
    what is left of them. The last client takes what remains.

    The concentration sums to alpha, not to alpha times the classes, so alpha is not that of
    `dirichlet`. It is no axis of heterogeneity either where classes are small: on CIFAR-100-LT a
    client that draws one class exhausts it and is filled almost IID, so that alpha 0.1 is *nearer*
    to the global mix than alpha 10.
    """

    alpha: float = Field(
        default=1.0, gt=0, le=MOST_ALPHA, description="concentration, summed over all classes"
    )

    def split(self, labels: Labels, clients: int, rng: np.random.Generator) -> Sequence[np.ndarray]:
        """Return for each client the positions of its samples."""
        check_clients(labels, clients)
        counts = labels.counts()
        left = counts.copy()
        present = np.flatnonzero(counts)
        mixes = dirichlet(rng, self.alpha * counts[present] / counts.sum(), rows=clients - 1)
        size = len(labels.y) // clients
        # Of each client the classes that it holds and how many: a table would have a cell for all.
        takes = [_held(_take(present, mix, size, left)) for mix in mixes]
        takes.append(_held(left))
        owner = np.repeat(np.arange(clients), [len(classes) for classes, _ in takes])
        classes, number = (np.concatenate(column) for column in zip(*takes, strict=True))
        order = np.argsort(classes, kind="stable")
        client = np.empty(len(labels.y), dtype=np.int64)
        client[np.concatenate(by_class(labels, rng))] = np.repeat(owner[order], number[order])
        return Parts.by_owner(client, clients)


def _held(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the classes that there are samples of, and how many."""
    classes = np.flatnonzero(counts)
    return classes, counts[classes]


def _take(present: np.ndarray, mix: np.ndarray, size: int, left: np.ndarray) -> np.ndarray:
    """Return one client's class counts, and take them off `left`."""
    taken = np.zeros_like(left)
    # What is still promised to nobody. It shrinks by what a class should have given, not by what
    # it had: a shortage is made good at once, from other classes, and the size stays exact.
    room = size
    wanted = np.rint(mix * size)
    wanted[-1] = size  # rounded shares need not add up to the size; the last class makes up for it
    asked = np.flatnonzero(wanted)  # of many classes most are not
    for c, share in zip(present[asked].tolist(), wanted[asked].tolist(), strict=True):
        want = min(int(share), room)
        have = min(want, int(left[c]))
        left[c] -= have
        taken[c] += have
        if have < want:
            fill = _replacement(left, want - have)
            left -= fill
            taken += fill
        room -= want
    return taken


def _replacement(left: np.ndarray, number: int) -> np.ndarray:
    """Return `number` samples of the other classes, from the class with least left to the most.

    Each class gives its share in proportion to what is left of it, rounded up, until there are
    enough: small shortages are met by the rarest classes alone.
    """
    # Rounding up promises too many, so the order decides who gives: a class that stands behind the
    # point where the sum is reached gives nothing.
    order = np.argsort(left, kind="stable")
    shares = np.ceil(left[order] * number / left.sum()).astype(np.int64)
    filled = np.minimum(np.cumsum(shares), number)
    given = np.zeros_like(left)
    given[order] = np.diff(filled, prepend=0)
    return given
