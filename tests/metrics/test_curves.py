"""What a whole run says, with rounds that were not evaluated."""

from __future__ import annotations

from typing import Any

import pytest

from fedtail.metrics import bytes_to, last_rounds, rounds_to, rounds_to_own


def run(*values: float | None) -> list[dict[str, Any]]:
    return [
        {"round": at, "accuracy": value, "bytes_up": 10, "bytes_down": 100}
        for at, value in enumerate(values, start=1)
    ]


def test_last_rounds_by_hand() -> None:
    # Mean of 1, 2, 3, 4 is 2.5; squared gaps 2.25 + 0.25 + 0.25 + 2.25 = 5, over 4 is 1.25.
    mean, std = last_rounds(run(9, 9, 1, 2, 3, 4), "accuracy", n=4)

    assert mean == 2.5
    assert std == pytest.approx(1.25**0.5)


def test_last_rounds_are_rounds_not_evaluations() -> None:
    tested_every_other = run(0.1, None, 0.5, None, 0.7)

    mean, std = last_rounds(tested_every_other, "accuracy", n=3)

    assert mean == pytest.approx(0.6)
    assert std == pytest.approx(0.1)
    assert last_rounds(tested_every_other, "accuracy", n=1) == (0.7, 0.0)


def test_last_rounds_of_a_short_or_untested_run() -> None:
    assert last_rounds(run(0.5), "accuracy") == (0.5, 0.0)
    assert last_rounds(run(None, None), "accuracy") == (None, None)
    assert last_rounds(run(0.5), "few") == (None, None)
    assert last_rounds([], "accuracy") == (None, None)


def test_rounds_and_bytes_to_a_target() -> None:
    records = run(0.1, None, 0.5, 0.4, 0.6)

    assert rounds_to(records, "accuracy", 0.5) == 3
    assert bytes_to(records, "accuracy", 0.5) == 3 * 110  # the untested round sent as much
    assert rounds_to(records, "accuracy", 0.7) is None
    assert bytes_to(records, "accuracy", 0.7) is None


def test_rounds_to_its_own_maximum() -> None:
    # 98 % of 0.50 is 0.49: round 3, although the maximum comes in round 4.
    assert rounds_to_own(run(0.1, 0.48, 0.495, 0.5, 0.3), "accuracy") == 3
    assert rounds_to_own(run(0.1, 0.48, 0.495, 0.5), "accuracy", share=0.9) == 2
    assert rounds_to_own(run(None), "accuracy") is None


def test_missing_traffic_counts_as_none() -> None:
    assert bytes_to([{"round": 1, "accuracy": 1.0, "bytes_up": None}], "accuracy", 0.5) == 0
