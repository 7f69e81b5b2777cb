"""Scores over clients' own models: means, and five numbers."""

from __future__ import annotations

from typing import Any

import pytest

from fedtail.metrics import personal_scores
from fedtail.metrics.personal import five_numbers


def scored(accuracy: float, few: float | None, per_class: list[float | None]) -> dict[str, Any]:
    return {
        "accuracy": accuracy,
        "balanced_accuracy": accuracy,
        "few": few,
        "per_class": per_class,
    }


def test_five_numbers_by_hand() -> None:
    # Four values: the quartiles lie 3/4, 6/4 and 9/4 steps from the least, so between neighbours
    # 0.1 + 3/4 (0.3 - 0.1) = 0.25, 0.3 + 1/2 (0.4 - 0.3) = 0.35, 0.4 + 1/4 (0.8 - 0.4) = 0.5.
    assert five_numbers([0.8, 0.3, 0.1, 0.4]) == pytest.approx([0.1, 0.25, 0.35, 0.5, 0.8])
    assert five_numbers([0.3]) == [0.3] * 5
    assert five_numbers([None, 0.3, None]) == [0.3] * 5
    assert five_numbers([None]) is None
    assert five_numbers([]) is None


def test_the_scores_are_means_over_clients() -> None:
    each = [scored(0.2, None, [0.0, 0.4, None]), scored(0.6, 0.5, [1.0, 0.2, None])]
    found = personal_scores(each, scored(0.9, 0.8, [0.9, 0.9, None]))
    assert found["accuracy"] == pytest.approx(0.4)
    assert found["few"] == 0.5  # where one client has no number, the other's counts
    assert found["per_class"] == pytest.approx([0.5, 0.3, None])
    assert found["personal"] == {
        "models": 2,
        "accuracy": pytest.approx([0.2, 0.3, 0.4, 0.5, 0.6]),
        "balanced_accuracy": pytest.approx([0.2, 0.3, 0.4, 0.5, 0.6]),
        "few": [0.5] * 5,
    }
    assert found["shipped"] == {"accuracy": 0.9, "balanced_accuracy": 0.9, "few": 0.8}


def test_no_model_has_no_score() -> None:
    found = personal_scores([], scored(0.9, 0.8, [0.9]))
    assert found["accuracy"] is None
    assert found["per_class"] is None
    assert found["personal"] == {
        "models": 0,
        "accuracy": None,
        "balanced_accuracy": None,
        "few": None,
    }
