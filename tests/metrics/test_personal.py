"""Scores over clients' own models: means, and five numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedtail.metrics import client_scores, personal_scores
from fedtail.metrics.personal import MOST_CLIENTS, five_numbers


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
    found = personal_scores(each, own=True)
    mean = found.pop("mean")
    assert mean["accuracy"] == pytest.approx(0.4)
    assert mean["few"] == 0.5  # where one client has no number, the other's counts
    assert mean["per_class"] == pytest.approx([0.5, 0.3, None])
    assert found == {
        "models": 2,
        "tested_on": "own samples",
        "accuracy": pytest.approx([0.2, 0.3, 0.4, 0.5, 0.6]),
        "balanced_accuracy": pytest.approx([0.2, 0.3, 0.4, 0.5, 0.6]),
        "few": [0.5] * 5,
    }


def test_no_model_has_no_score() -> None:
    found = personal_scores([], own=False)
    assert set(found.pop("mean").values()) == {None}
    assert found == {
        "models": 0,
        "tested_on": "test set",
        "accuracy": None,
        "balanced_accuracy": None,
        "few": None,
    }


def test_one_model_client_by_client() -> None:
    # 3/4, 1/2, nobody's samples, 2/2: least 1/2, then 5/8, 3/4, 7/8, 1.
    counts = torch.tensor([[3, 4], [1, 2], [0, 0], [2, 2]])
    assert client_scores(counts, ["ann", "bob", "cy", "232"]) == {
        "worst": "bob",
        "spread": [0.5, 0.625, 0.75, 0.875, 1.0],
        "accuracy": {"ann": 0.75, "bob": 0.5, "232": 1.0},
    }


def test_a_long_list_of_clients_is_left_out() -> None:
    counts = torch.ones(MOST_CLIENTS + 1, 2, dtype=torch.int64)
    found = client_scores(counts, [str(k) for k in range(len(counts))])
    assert found == {"worst": "0", "spread": [1.0] * 5}
