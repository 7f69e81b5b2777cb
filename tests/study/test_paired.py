"""Paired differences: the interval and the test, on numbers that fit on a line."""

from __future__ import annotations

import pytest

from fedtail.study.paired import EXACT, difference, half_width, sign_flip


def test_the_interval_is_students_t_of_the_differences() -> None:
    # Differences 1, 2, 3: mean 2, deviation 1; t of 97.5 % with 2 degrees is 4.3027, over sqrt(3).
    found = difference({0: 4.0, 1: 6.0, 2: 8.0}, {0: 3.0, 1: 4.0, 2: 5.0})
    assert found is not None
    half = 4.302653 / 3**0.5
    assert (found.mean, found.seeds) == (2.0, 3)
    assert (found.low, found.high) == pytest.approx((2 - half, 2 + half), rel=1e-6)
    assert not found.sure


def test_pairing_takes_out_what_seeds_share() -> None:
    # The seeds differ by 50 points, the methods by 2 in each: 1.9, 2.0 and 2.1.
    ours, others = {0: 11.9, 1: 62.0, 2: 42.1}, {0: 10.0, 1: 60.0, 2: 40.0}
    found = difference(ours, others)
    assert found is not None and found.sure
    assert found.low == pytest.approx(2 - 4.302653 * 0.1 / 3**0.5, rel=1e-5)


def test_only_seeds_that_both_have_count() -> None:
    found = difference({0: 1.0, 1: 5.0, 7: 9.0}, {1: 4.0, 0: 1.0, 3: 0.0})
    assert found is not None
    assert (found.mean, found.seeds) == (0.5, 2)
    assert difference({0: 1.0}, {1: 1.0}) is None


def test_of_one_seed_nothing_is_claimed() -> None:
    found = difference({0: 1.0}, {0: 0.0})
    assert found is not None
    assert (found.mean, found.low, found.high, found.p, found.sure) == (
        1.0,
        None,
        None,
        None,
        False,
    )
    assert half_width([1.0]) is None


def test_sign_flips_by_hand() -> None:
    # 1, 2, 3: of the eight sums only +6 and -6 are as far from zero.
    assert sign_flip([1.0, 2.0, 3.0]) == 2 / 8
    # 1, 2, -1: the sum is 2. The others are 4, 0, 2 and their negatives, 2 twice: 6 of 8.
    assert sign_flip([1.0, 2.0, -1.0]) == 6 / 8
    assert sign_flip([0.0, 0.0]) == 1.0
    assert sign_flip([0.1] * 5) == 2 / 32


def test_sums_that_are_equal_on_paper_count_as_equal() -> None:
    # The sum is 1. With +1, ±0.1 ± 0.2 ± 0.3 adds 0.6, 0.4, 0.2, 0 or 0 in five of eight cases,
    # and as much with -1; in floating point 0.1 + 0.2 - 0.3 is not 0.
    assert sign_flip([0.1, 0.2, -0.3, 1.0]) == 10 / 16


def test_sums_that_are_zero_on_paper_count_as_zero() -> None:
    # In hundredths 3, -2, 3 and -4 (98 - 101, ...): the sum is 0, and every sum is as far from it.
    pairs = zip((98, 16, 94, 51), (101, 13, 91, 54), strict=True)
    assert sign_flip([a / 200 - b / 200 for a, b in pairs]) == 1.0
    assert sign_flip([0.4 - 0.7, 0.3 - 0.2, 0.3 - 0.1]) == 1.0


def test_many_seeds_are_drawn_and_always_the_same() -> None:
    values = [1.0] * (EXACT + 4)
    assert sign_flip(values) == sign_flip(values) < 1e-3
    assert sign_flip([1.0, -1.0] * 10) > 0.9
