"""Many models, one a client: their mean, and how far they lie apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedtail.metrics.scores import ScoreValue

BOXED = ("accuracy", "balanced_accuracy", "few")
"""The scores that a box is drawn of."""


def personal_scores(
    each: Sequence[Mapping[str, ScoreValue]], shipped: Mapping[str, ScoreValue]
) -> dict[str, Any]:
    """Return the scores of a method whose clients have models of their own.

    Parameters
    ----------
    each
        The scores of every client's model.
    shipped
        Those of the model that is shipped.

    Returns
    -------
    dict
        Every score as its mean over clients. ``personal`` holds the number of ``models`` and, of
        accuracy, balanced accuracy and the few-shot classes, [least, first quartile, median, third
        quartile, greatest] over clients; ``shipped`` the same three scores of the shipped model.
        A model for which a score is not defined counts nowhere in it.
    """
    return {
        **{key: _mean([scores[key] for scores in each]) for key in shipped},
        "personal": {
            "models": len(each),
            **{key: five_numbers([scores[key] for scores in each]) for key in BOXED},
        },
        "shipped": {key: shipped[key] for key in BOXED},
    }


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
