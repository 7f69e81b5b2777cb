"""Long-tailed class counts, by an explicit imbalance ratio.

A tail says how many samples of each class are kept. Test sets are never cut. What the papers write
as ``imb_factor`` is one over the imbalance ratio: 0.01 there is ``imbalance=100`` here.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedtail.config import Component, Registry
from fedtail.data.partitions.base import Labels
from fedtail.errors import FedtailError


class Tail(Component):
    """A named rule for how many samples of each class are kept."""

    registry: ClassVar[Registry[Tail]] = Registry("tail")

    def counts(self, sizes: np.ndarray) -> np.ndarray:
        """Return how many samples of each class to keep, given how many there are.

        A class never keeps more than it has, and a class that has samples keeps at least one.
        """
        raise FedtailError(f"tail '{self.name}' is abstract")

    def keep(self, labels: Labels, rng: np.random.Generator) -> np.ndarray:
        """Return the positions that are kept, in ascending order."""
        raise FedtailError(f"tail '{self.name}' is abstract")


@Tail.register("none")
class NoTail(Tail):
    """Keep everything (FedLC; data with a natural tail: FEMNIST, IMU, ImageNet-LT)."""

    def counts(self, sizes: np.ndarray) -> np.ndarray:
        """Return the sizes themselves."""
        return np.asarray(sizes, dtype=np.int64)

    def keep(self, labels: Labels, rng: np.random.Generator) -> np.ndarray:
        """Return all positions."""
        return np.arange(len(labels.y), dtype=np.int64)


class Cut(Tail):
    """What the tails that drop samples share: the ratio, and which samples stay."""

    imbalance: float = Field(
        default=100.0, ge=1, description="imbalance ratio: most frequent class over rarest class"
    )
    take: Literal["random", "first"] = Field(
        default="random",
        description="which samples of a class stay: a seeded draw, or the first in file order "
        "(what the GBME code does)",
    )

    def keep(self, labels: Labels, rng: np.random.Generator) -> np.ndarray:
        """Return the positions that are kept, in ascending order."""
        sizes = labels.counts()
        by_class = np.split(np.argsort(labels.y, kind="stable"), np.cumsum(sizes)[:-1])
        chosen = [np.empty(0, dtype=np.int64)]
        for positions, count in zip(by_class, self.counts(sizes), strict=True):
            pool = rng.permutation(positions) if self.take == "random" else positions
            chosen.append(pool[:count])
        return np.sort(np.concatenate(chosen))


@Tail.register("exponential")
class Exponential(Cut):
    """Exponential decay: class c keeps ``int(n_max * IR ** (-c / (C - 1)))``.

    Used by RedGrape, BalanceFL, CReFF and GBME. Class 0 is the most frequent one, unless
    `sort_classes` ranks the classes by size first.

    `n_max` is the size of the largest class unless it is given. Where the classes differ in size
    (MNIST), a class with fewer samples than its target keeps all it has, so that the realised ratio
    may be below the one asked for; RedGrape's MNIST protocol is `own_size`.
    """

    n_max: int | None = Field(
        default=None, ge=1, description="target of the most frequent class (default: largest class)"
    )
    own_size: bool = Field(
        default=False,
        description="start from each class's own size instead of n_max (RedGrape on MNIST)",
    )
    sort_classes: bool = Field(
        default=False,
        description="rank the classes by size first (BalanceFL on Speech Commands)",
    )

    def counts(self, sizes: np.ndarray) -> np.ndarray:
        """Return the exponentially decaying targets, limited to what each class has."""
        sizes = np.asarray(sizes, dtype=np.int64)
        rank = np.arange(len(sizes))
        if self.sort_classes:
            rank[np.argsort(-sizes, kind="stable")] = np.arange(len(sizes))
        decay = self.imbalance ** (-rank / max(len(sizes) - 1, 1))
        start = sizes if self.own_size else (self.n_max or sizes.max(initial=0))
        return _limited(start * decay, sizes)


@Tail.register("step")
class Step(Cut):
    """Step imbalance: some classes keep ``int(n / IR)`` of their n samples, the others all.

    By default the second half of the classes is cut, as in the BalanceFL and GBME code. RedGrape's
    binary imbalance (its Table 3) is ``classes=(0, 7, 8)``.
    """

    classes: tuple[int, ...] | None = Field(
        default=None, description="the classes that are cut (default: the second half)"
    )

    def counts(self, sizes: np.ndarray) -> np.ndarray:
        """Return the sizes, with the chosen classes divided by the ratio."""
        sizes = np.asarray(sizes, dtype=np.int64)
        number = len(sizes)
        cut = range(number // 2, number) if self.classes is None else self.classes
        for c in cut:
            if not 0 <= c < number:
                raise FedtailError(
                    f"step tail: class {c} is not one of the {number} classes "
                    f"(allowed: 0 to {number - 1})"
                )
        targets = sizes.astype(np.float64)
        targets[list(cut)] /= self.imbalance
        return _limited(targets, sizes)


def _limited(targets: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    # The small addend keeps a whole number whole: 2.9999999999999996 stands for 3.
    whole = np.floor(targets + 1e-9).astype(np.int64)
    kept: np.ndarray = np.minimum(np.maximum(whole, 1), sizes)
    return kept
