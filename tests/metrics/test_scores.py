"""Scores: by hand, against scikit-learn, and where classes are missing."""

from __future__ import annotations

import json
import math

import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score

from fedtail.errors import FedtailError
from fedtail.metrics import Evaluation, IndexGroups, RankGroups, ThresholdGroups, scores

KEYS = {
    "accuracy",
    "balanced_accuracy",
    "many",
    "medium",
    "few",
    "tail",
    "worst_class",
    "per_class",
    "loss",
    "ece",
}


def answered(pairs: list[tuple[int, int]], num_classes: int) -> Evaluation:
    """Return the evaluation of a model that gave the second class where the first is true."""
    logits = torch.zeros(len(pairs), num_classes)
    for row, (_, given) in enumerate(pairs):
        logits[row, given] = 5.0
    return Evaluation.of(logits, torch.tensor([truth for truth, _ in pairs]), num_classes)


def test_every_score_by_hand() -> None:
    # Ten classes in order of frequency; the test set is uneven on purpose.
    # Class accuracies: 0: 4/4, 1: 1/2, 2: 1/1, 3: 0/1, 4 to 6: 1/1, 7: 1/4, 8: 0/1, 9: 1/1.
    pairs = [(0, 0)] * 4 + [(1, 1), (1, 0), (2, 2), (3, 0), (4, 4), (5, 5), (6, 6)]
    pairs += [(7, 7), (7, 0), (7, 0), (7, 0), (8, 0), (9, 9)]

    found = scores(answered(pairs, 10), RankGroups(), list(range(10, 0, -1)))

    assert found["accuracy"] == 11 / 17
    assert found["balanced_accuracy"] == pytest.approx((1 + 0.5 + 1 + 0 + 3 + 0.25 + 0 + 1) / 10)
    assert found["many"] == pytest.approx((1 + 0.5 + 1 + 0) / 4)
    assert found["medium"] == 1.0
    assert found["few"] == pytest.approx((0.25 + 0 + 1) / 3)
    assert found["tail"] == 2 / 6  # pooled over the six samples of classes 7, 8 and 9
    assert found["worst_class"] == 0.0
    assert found["per_class"] == [1, 0.5, 1, 0, 1, 1, 1, 0.25, 0, 1]


def test_accuracies_agree_with_scikit_learn() -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(300, 7, generator=generator)
    y = torch.randint(7, (300,), generator=generator)

    found = scores(Evaluation.of(logits, y, 7), RankGroups(), [1] * 7)

    predicted = logits.argmax(1).numpy()
    assert found["accuracy"] == pytest.approx(accuracy_score(y.numpy(), predicted))
    assert found["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(y, predicted))


def test_calibration_error_by_hand() -> None:
    # Two samples at confidence 3/4, one right: gap |1/2 - 3/4|; two at 1/2 (first class by tie),
    # both right: gap |1 - 1/2|. ECE = 2/4 * 1/4 + 2/4 * 1/2 = 3/8.
    logits = torch.tensor([[0.0, math.log(3)], [0.0, math.log(3)], [0.0, 0.0], [0.0, 0.0]])

    found = scores(Evaluation.of(logits, torch.tensor([1, 0, 0, 0]), 2), RankGroups(), [2, 1])

    assert found["ece"] == pytest.approx(3 / 8, abs=1e-6)
    # ln 4/3 + ln 4 + 2 ln 2 over four samples.
    assert found["loss"] == pytest.approx((math.log(16 / 3) + 2 * math.log(2)) / 4, abs=1e-6)


def test_tail_follows_the_training_counts() -> None:
    # Class 0 is the rarest of three; int(0.7 * 3) = 2 leaves it alone in the tail.
    found = scores(answered([(0, 0), (0, 1), (1, 1), (2, 2)], 3), RankGroups(), [1, 9, 5])

    assert found["tail"] == 0.5


def test_classes_without_test_samples_count_nowhere() -> None:
    found = scores(
        answered([(0, 0), (0, 2), (2, 2)], 4),
        IndexGroups(many_until=1, medium_until=2),
        [5, 4, 3, 0],
    )

    assert found["per_class"] == [0.5, None, 1.0, None]
    assert found["balanced_accuracy"] == 0.75
    assert found["medium"] is None
    assert found["few"] == 1.0
    assert found["worst_class"] == 0.5
    assert found["tail"] == 1.0  # int(0.7 * 4) = 2: classes 2 and 3, of which 3 has no sample


def test_an_empty_group_is_none() -> None:
    found = scores(answered([(0, 0), (1, 0)], 2), ThresholdGroups(), [500, 300])

    assert (found["many"], found["medium"], found["few"]) == (0.5, None, None)


@pytest.mark.parametrize("num_classes", [1, 2])
def test_one_and_two_classes(num_classes: int) -> None:
    found = scores(answered([(0, 0)], num_classes), RankGroups(), [3] * num_classes)

    assert set(found) == KEYS
    assert found["accuracy"] == found["balanced_accuracy"] == 1.0
    assert found["many"] is None  # all classes have as many samples
    assert found["few"] is None
    assert found["tail"] == (1.0 if num_classes == 1 else None)


def test_no_sample_and_a_diverged_model_are_plain_json() -> None:
    nothing = scores(Evaluation.empty(2), RankGroups(), [0, 0])
    diverged = Evaluation.of(torch.full((3, 2), torch.nan), torch.tensor([0, 1, 1]), 2)
    lost = scores(diverged, RankGroups(), [1, 1])

    assert nothing == {**dict.fromkeys(KEYS), "per_class": [None, None]}
    assert lost["loss"] is None and lost["ece"] is None
    assert lost["accuracy"] is not None
    assert json.loads(json.dumps([nothing, lost], allow_nan=False)) == [nothing, lost]


def test_counts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(FedtailError, match="3 training counts for 2 classes"):
        scores(Evaluation.empty(2), RankGroups(), [1, 2, 3])
