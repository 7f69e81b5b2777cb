"""A view of features written by hand: three classes, two clients, six test samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedtail.report import FeatureView

COUNTS = [[2, 6, 4], [0, 4, 1]]
"""As in the split of `run_folders`: class 1 is the most frequent, then 2, then 0."""


def make_view(**changes: Any) -> FeatureView:
    """Return the view; sample 5 of class 2 is taken for class 1."""
    fields: dict[str, Any] = {
        "path": Path("runs/a"),
        "seed": 0,
        "classes": ("cat", "dog", "<b>owl</b>"),
        "counts": np.array(COUNTS),
        "groups": {"many": (1,), "medium": (2,), "few": (0,)},
        "positions": np.array([0, 1, 3, 4, 7, 8]),
        "labels": np.array([0, 0, 1, 1, 2, 2]),
        "predicted": np.array([0, 0, 1, 1, 2, 1]),
        "points": np.array([[0, 0], [1, 0], [9, 9], [10, 9], [0, 9], [9, 0]], dtype=float),
        "norms": np.array([[1.0, 3.0, 2.0]]),
        **changes,
    }
    return FeatureView(**fields)
