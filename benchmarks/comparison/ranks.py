"""Methods ranked over cells, and which differences of mean ranks chance would not make."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import rankdata, studentized_range

from benchmarks.figures.common import new_figure

Means = Mapping[str, Mapping[str, float]]
"""A score by cell and method."""


def mean_ranks(means: Means) -> dict[str, float]:
    """Return the mean rank of each method that every cell has; 1 is best, ties share a rank."""
    methods = shared(means)
    table = np.array([[-cell[method] for method in methods] for cell in means.values()])
    ranks = np.mean([rankdata(row) for row in table], axis=0)
    return dict(sorted(zip(methods, map(float, ranks), strict=True), key=lambda item: item[1]))


def shared(means: Means) -> list[str]:
    """Return the methods that every cell has, in the order of the first."""
    first, *others = means.values()
    return [method for method in first if all(method in cell for cell in others)]


def critical_difference(methods: int, cells: int, level: float = 0.05) -> float:
    """Return the difference of two mean ranks that is beyond chance (Nemenyi; Demšar 2006).

    q·√(k(k+1)/6N) with q the upper quantile of the studentised range of k normal numbers, over √2.
    """
    q = float(studentized_range.ppf(1 - level, methods, math.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * cells))


def picture(ranks: Mapping[str, float], cells: int, over: str = "cells") -> Figure:
    """Draw a point a method at its mean rank, and bars over those that are not told apart."""
    names = list(ranks)
    width = critical_difference(len(names), cells)
    figure = new_figure(7.0, 0.8 + 0.28 * len(names))
    axes = figure.subplots()
    for place, name in enumerate(names):
        axes.plot([ranks[name], ranks[name] + width], [place, place], color="0.8", lw=5)
        axes.plot(ranks[name], place, "o", color="tab:blue")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel(f"mean rank over {cells} {over}; grey: not told apart from worse ones (95 %)")
    return figure
