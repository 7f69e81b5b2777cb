"""From counts to the numbers people quote."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from fedtail.errors import FedtailError
from fedtail.metrics.evaluation import Evaluation
from fedtail.metrics.groups import ShotGroups, by_frequency

ScoreValue = float | list[float | None] | None

SCORES = (
    "accuracy",
    "balanced_accuracy",
    "many",
    "medium",
    "few",
    "tail",
    "worst_class",
    "loss",
    "ece",
)
"""The keys of a tested round that are single numbers; ``per_class`` is a list."""
LESS_IS_BETTER = ("loss", "ece")


def scores(
    evaluation: Evaluation, groups: ShotGroups, train_counts: Sequence[int]
) -> dict[str, ScoreValue]:
    """Return every score of one evaluation, as plain JSON values.

    Parameters
    ----------
    evaluation
        The merged counts of the whole test set.
    groups
        Where the lines between many, medium and few run.
    train_counts
        How many training samples of each class all clients hold together.

    Returns
    -------
    dict
        ``accuracy``; ``balanced_accuracy``, ``many``, ``medium`` and ``few`` (unweighted means of
        class accuracies); ``tail`` (right answers over samples of the 30 % rarest classes);
        ``worst_class`` (the lowest class accuracy); ``per_class``; ``loss`` (mean cross-entropy)
        and ``ece`` (expected calibration error). A class without test samples is `None` in
        ``per_class`` and counts nowhere else; a score that nothing defines is `None`.
    """
    right, of_class = evaluation.right.tolist(), evaluation.of_class.tolist()
    return {
        **class_scores(right, of_class, groups, train_counts),
        "loss": _ratio(evaluation.loss_sum, evaluation.samples),
        "ece": _calibration_error(evaluation),
    }


def class_scores(
    correct: Sequence[int], totals: Sequence[int], groups: ShotGroups, train_counts: Sequence[int]
) -> dict[str, ScoreValue]:
    """Return the scores that follow from right answers and samples of each class.

    Parameters
    ----------
    correct, totals
        How many samples of each class were answered rightly, and how many there are.
    groups, train_counts
        As in `scores`.
    """
    num_classes = len(totals)
    if len(train_counts) != num_classes:
        raise FedtailError(f"{len(train_counts)} training counts for {num_classes} classes")
    per_class = [_ratio(c, n) for c, n in zip(correct, totals, strict=True)]
    # In integers: 0.7 * 90 is 62.99... in floats and would move a class into the tail.
    tail = by_frequency(train_counts)[7 * num_classes // 10 :]
    assigned = groups.assign(train_counts)
    return {
        "accuracy": _ratio(sum(correct), sum(totals)),
        "balanced_accuracy": _mean(per_class),
        **{name: _mean(per_class[c] for c in classes) for name, classes in assigned.items()},
        "tail": _ratio(sum(correct[c] for c in tail), sum(totals[c] for c in tail)),
        "worst_class": min((a for a in per_class if a is not None), default=None),
        "per_class": per_class,
    }


def _calibration_error(evaluation: Evaluation) -> float | None:
    """Σ_b (n_b / n) |accuracy_b - confidence_b|, where n_b cancels inside each bin."""
    gaps = (evaluation.bin_correct - evaluation.bin_confidence).abs()
    return _ratio(float(gaps.sum()), evaluation.samples)


def _ratio(part: float, whole: int) -> float | None:
    return part / whole if whole and math.isfinite(part) else None


def _mean(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return math.fsum(present) / len(present) if present else None
