"""The maps of features as a figure: one a method, side by side, with one legend."""

from __future__ import annotations

import colorsys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedtail.data.plot import in_legend, literal
from fedtail.metrics.groups import by_frequency
from fedtail.report.features import GROUPS, SIDES, FeatureView

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = ("o", "^", "x")
"""Many or majority, medium or minority, few or missing."""
COLUMNS = 3
SIDE = 2.4
"""Of one map, in inches."""
NAMED = 20
"""With more classes the legend would be larger than the maps."""


def draw_map(figure: Figure, views: Mapping[str, FeatureView], client: int | None = None) -> None:
    """Draw the maps of some methods.

    Parameters
    ----------
    figure
        An empty figure; it gets the size that the maps need.
    views
        What to draw, by title.
    client
        Whose majority, minority and missing classes are marked; by default the marks are many,
        medium and few.
    """
    columns = min(COLUMNS, len(views))
    rows = -(-len(views) // columns)
    figure.set_size_inches(max(3.6, SIDE * columns), SIDE * rows + 0.9)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for axes, (label, view) in zip(grid.flat, views.items(), strict=False):
        axes.set_axis_on()
        axes.set(xticks=[], yticks=[])
        axes.set_aspect("equal", adjustable="datalim")  # one scale, and boxes of one size
        axes.set_title(literal(label), fontsize=8)
        _draw(axes, view, client)
    _legend(figure, next(iter(views.values())), client)


def _draw(axes: Any, view: FeatureView, client: int | None) -> None:
    marks, names = view.marks(client), GROUPS if client is None else SIDES
    for c, colour in colours(view).items():
        x, y = view.points[view.labels == c].T
        marker = MARKERS[names.index(marks[c])] if marks[c] in names else MARKERS[0]
        axes.scatter(x, y, s=7, color=[colour], marker=marker, linewidths=0.7, alpha=0.8)


def colours(view: FeatureView) -> dict[int, tuple[float, float, float]]:
    """Return a colour a class, round the wheel from head to tail, light and dark in turn."""
    order = by_frequency(view.class_counts)
    lightness = (0.34, 0.48)
    return {
        c: colorsys.hls_to_rgb(place / len(order), lightness[place % 2], 0.65)
        for place, c in enumerate(order)
    }


def _legend(figure: Figure, view: FeatureView, client: int | None) -> None:
    from matplotlib.lines import Line2D

    def entry(label: str, marker: str, colour: Any) -> Any:
        return Line2D([], [], linestyle="", marker=marker, color=colour, label=label, markersize=4)

    names = GROUPS if client is None else [f"{side} of client {client}" for side in SIDES]
    entries = [entry(name, mark, "0.3") for name, mark in zip(names, MARKERS, strict=True)]
    shown = colours(view)
    if len(shown) <= NAMED:
        entries += [entry(in_legend(view.classes[c]), "s", colour) for c, colour in shown.items()]
    columns = int(np.clip(figure.get_size_inches()[0] * 1.3, 3, 7))
    figure.legend(
        handles=entries, loc="outside lower center", ncols=columns, fontsize=6, frameon=False
    )
