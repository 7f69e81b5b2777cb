"""Which classes are many-, medium- and few-shot: three definitions, never mixed in silence.

The papers draw the lines differently (CReFF by sample counts, GBME by fixed index ranges), and the
same label over another line is another number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

from pydantic import Field, model_validator

from fedtail.config import Component, Registry
from fedtail.errors import FedtailError

Groups = dict[str, tuple[int, ...]]
"""``many``, ``medium`` and ``few``, each with its classes in ascending order; perhaps none."""


def by_frequency(counts: Sequence[int]) -> list[int]:
    """Return the classes from the most to the least frequent; ties stand in index order."""
    return sorted(range(len(counts)), key=lambda c: (-counts[c], c))


LEAST_TAIL = 1.5
"""The most frequent class of a tail has at least so many times the samples of the rarest."""


def has_tail(counts: Sequence[int]) -> bool:
    """Whether some classes are rarer than others; not if all have about as many samples."""
    return max(counts) >= LEAST_TAIL * min(counts) or not any(counts)


class ShotGroups(Component):
    """A named way to tell frequent from rare classes by their training samples.

    A class nobody trains on is a class with zero samples.
    """

    registry: ClassVar[Registry[ShotGroups]] = Registry("groups")

    def assign(self, counts: Sequence[int]) -> Groups:
        """Return the classes of each group.

        Parameters
        ----------
        counts
            How many training samples of each class all clients hold together.
        """
        raise FedtailError(f"groups '{self.name}' is abstract")


@ShotGroups.register("rank")
class RankGroups(ShotGroups):
    """By frequency rank: many are the first ⌈0.35 C⌉, few the last ⌊0.3 C⌋, medium the rest.

    On frequency-sorted classes these are GBME's fixed ranges: 4 / 3 / 3 of 10 classes,
    35 / 35 / 30 of 100. If all classes have about as many samples, there are none of these groups.
    """

    def assign(self, counts: Sequence[int]) -> Groups:
        """Return the classes of each group; with fewer than four classes none is few-shot."""
        if not has_tail(counts):
            return _groups((), (), ())
        order, num_classes = by_frequency(counts), len(counts)
        # In integers, so that no rounding of 0.35 * C (62.99... for C = 180) decides a class.
        many = -(-35 * num_classes // 100)
        few = num_classes - 30 * num_classes // 100
        return _groups(order[:many], order[many:few], order[few:])


@ShotGroups.register("thresholds")
class ThresholdGroups(ShotGroups):
    """By sample counts, as CReFF does: many above `many`, few below `few`, medium between."""

    many: int = Field(100, ge=0, description="many-shot classes have more training samples")
    few: int = Field(20, ge=0, description="few-shot classes have fewer training samples")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.few > self.many:
            raise FedtailError(f"few = {self.few} must not exceed many = {self.many}")
        return self

    def assign(self, counts: Sequence[int]) -> Groups:
        """Return the classes of each group."""
        classes = range(len(counts))
        return _groups(
            [c for c in classes if counts[c] > self.many],
            [c for c in classes if self.few <= counts[c] <= self.many],
            [c for c in classes if counts[c] < self.few],
        )


@ShotGroups.register("index")
class IndexGroups(ShotGroups):
    """By class index, whatever the counts: many are [0, many_until), few [medium_until, C).

    GBME's ranges for ImageNet-LT are ``many_until=385, medium_until=864``.
    """

    many_until: int = Field(ge=0, description="the first class that is not many-shot")
    medium_until: int = Field(ge=0, description="the first few-shot class")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.many_until > self.medium_until:
            raise FedtailError(
                f"many_until = {self.many_until} must not exceed medium_until = {self.medium_until}"
            )
        return self

    def assign(self, counts: Sequence[int]) -> Groups:
        """Return the classes of each group."""
        classes = range(len(counts))
        if self.medium_until > len(classes):
            raise FedtailError(
                f"groups.medium_until = {self.medium_until} is beyond the {len(classes)} classes"
            )
        return _groups(
            classes[: self.many_until],
            classes[self.many_until : self.medium_until],
            classes[self.medium_until :],
        )


def _groups(many: Sequence[int], medium: Sequence[int], few: Sequence[int]) -> Groups:
    return {
        "many": tuple(sorted(many)),
        "medium": tuple(sorted(medium)),
        "few": tuple(sorted(few)),
    }
