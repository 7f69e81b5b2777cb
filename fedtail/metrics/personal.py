"""Many clients: the scores of each one's own model, and one model on each one's samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from fedtail.metrics.scores import SCORES, ScoreValue

BOXED = ("accuracy", "balanced_accuracy", "few")
"""The scores that a box is drawn of."""
MOST_CLIENTS = 1000
"""With more clients a record holds their spread and the worst, and no list."""


def personal_scores(each: Sequence[Mapping[str, ScoreValue]], own: bool) -> dict[str, Any]:
    """Return the scores of models that clients have for themselves.

    Parameters
    ----------
    each
        The scores of every client's model.
    own
        Whether each was tested on its own client's test samples, or all on the global test set.

    Returns
    -------
    dict
        The number of ``models``; what they were ``tested_on``; every score as its ``mean`` over
        clients; and of accuracy, balanced accuracy and the few-shot classes [least, first quartile,
        median, third quartile, greatest] over clients. A model for which a score is not defined
        counts nowhere in it.
    """
    return {
        "models": len(each),
        "tested_on": "own samples" if own else "test set",
        "mean": {
            key: _mean([scores.get(key) for scores in each]) for key in (*SCORES, "per_class")
        },
        **{key: five_numbers([scores[key] for scores in each]) for key in BOXED},
    }


def client_scores(by_owner: Tensor, names: Sequence[str]) -> dict[str, Any]:
    """Return how one model does on each client's test samples.

    Parameters
    ----------
    by_owner
        Right answers and samples of each natural client (`Evaluation.by_owner`).
    names
        What the clients are called.

    Returns
    -------
    dict
        The ``worst`` client (of equals the first) and the ``spread`` of the accuracy: [least, first
        quartile, median, third quartile, greatest] over the clients that have test samples. Up to
        `MOST_CLIENTS` of them, ``accuracy`` has that of each by its name.
    """
    counted = zip(names, by_owner.tolist(), strict=True)
    accuracy = {name: right / samples for name, (right, samples) in counted if samples}
    found: dict[str, Any] = {
        "worst": min(accuracy, key=lambda name: accuracy[name], default=None),
        "spread": five_numbers(list(accuracy.values())),
    }
    return {**found, "accuracy": accuracy} if len(accuracy) <= MOST_CLIENTS else found


def five_numbers(values: Sequence[Any]) -> list[float] | None:
    """Return least, quartiles and greatest, with quartiles between two values interpolated."""
    known = [value for value in values if value is not None]
    return np.percentile(known, [0, 25, 50, 75, 100]).tolist() if known else None


def _mean(values: Sequence[Any]) -> Any:
    known = [value for value in values if value is not None]
    if not known:
        return None
    if isinstance(known[0], list):
        return [_mean(column) for column in zip(*known, strict=True)]
    return math.fsum(known) / len(known)
