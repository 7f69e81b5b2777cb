"""Parts read like a list of arrays, and are two."""

from __future__ import annotations

import numpy as np
import pytest

from fedtail.data.parts import Parts
from fedtail.data.statistics import class_table, statistics

LISTS = [[3, 5], [], [0, 1, 4], [2]]


def plain(parts: object) -> list[list[int]]:
    return [part.tolist() for part in parts]  # type: ignore[attr-defined]


def test_they_read_like_a_list() -> None:
    parts = Parts.of([np.array(part, np.int64) for part in LISTS])
    assert (len(parts), plain(parts), plain(parts[1:3])) == (4, LISTS, LISTS[1:3])
    assert parts[-1].tolist() == [2]
    assert parts.order.tolist() == [3, 5, 0, 1, 4, 2]
    assert (parts.sizes.tolist(), parts.owner.tolist()) == ([2, 0, 3, 1], [0, 0, 2, 2, 2, 3])
    assert Parts.of(parts) is parts
    with pytest.raises(IndexError):
        parts[4]


def test_none_is_false() -> None:
    assert not Parts.of([])
    assert Parts.of([]).order.dtype == np.int64


def test_from_each_samples_client() -> None:
    assert plain(Parts.by_owner(np.array([2, 2, 3, 0, 2, 0]), 4)) == LISTS


def test_of_a_part_of_the_samples() -> None:
    inside = Parts.by_owner(np.array([1, 0, 1]), 2).within(np.array([10, 20, 30]))
    assert plain(inside) == [[20], [10, 30]]


def test_a_table_of_few_samples_is_not_made() -> None:
    # Two clients with one sample each, of 1000 classes: sorted, not counted, to the same figures.
    labels, parts = np.array([7, 999]), [np.array([0]), np.array([1])]
    found = statistics(labels, parts, 1000)
    assert found.classes.tolist() == [1, 1]
    assert found.total_variation.tolist() == [0.5, 0.5]
    assert class_table(labels, parts, 1000).sum(axis=1).tolist() == [1, 1]
