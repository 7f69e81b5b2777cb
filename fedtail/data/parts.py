"""Who holds which samples, in two arrays however many clients there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np


class Parts(Sequence[np.ndarray]):
    """The positions of all clients, one client after the other.

    It reads like a list with an array for each client, and costs one integer a sample and one a
    client: a million arrays would take more memory than what they hold.

    Parameters
    ----------
    order
        The positions of the first client, then those of the second, and so on.
    offsets
        Where each client's begin in it, and at last where they end.
    """

    def __init__(self, order: np.ndarray, offsets: np.ndarray) -> None:
        self.order, self.offsets = order, offsets

    @classmethod
    def of(cls, parts: Sequence[np.ndarray]) -> Parts:
        """Return parts that may be a list of arrays."""
        if isinstance(parts, Parts):
            return parts
        order = np.concatenate([np.empty(0, np.int64), *parts]).astype(np.int64, copy=False)
        sizes = np.fromiter(map(len, parts), np.int64, len(parts))
        return cls(order, np.concatenate([[0], np.cumsum(sizes)]))

    @classmethod
    def by_owner(cls, owner: np.ndarray, clients: int) -> Parts:
        """Return the positions of each client's samples, ascending, from each sample's client."""
        ends = np.cumsum(np.bincount(owner, minlength=clients))
        return cls(np.argsort(owner, kind="stable"), np.concatenate([[0], ends]))

    @property
    def sizes(self) -> np.ndarray:
        """How many positions each client has."""
        return np.diff(self.offsets)

    @property
    def owner(self) -> np.ndarray:
        """The client of each entry of `order`."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def within(self, positions: np.ndarray) -> Parts:
        """Return the parts of a whole, where these are of the samples at some positions of it."""
        return Parts(positions[self.order], self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, k: int) -> np.ndarray: ...

    @overload
    def __getitem__(self, k: slice) -> list[np.ndarray]: ...

    def __getitem__(self, k: int | slice) -> np.ndarray | list[np.ndarray]:
        if isinstance(k, slice):
            return [self[each] for each in range(*k.indices(len(self)))]
        number = range(len(self))[k]  # negative ones count from the end, and too large ones raise
        return self.order[self.offsets[number] : self.offsets[number + 1]]
