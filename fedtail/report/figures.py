"""Figures for papers: PNG for a look, PDF for the page."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtail.files import make_folder, write_atomic
from fedtail.metrics.curves import traffic
from fedtail.metrics.groups import by_frequency
from fedtail.metrics.traffic import GB
from fedtail.report.content import class_counts
from fedtail.report.feature_map import draw_map
from fedtail.report.features import GROUPS, FeatureView
from fedtail.study.lines import Line, seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
"""Okabe and Ito's colours, told apart by people with any kind of colour vision."""
KINDS = ("png", "pdf")
SIZE = (5.0, 3.2)
"""Of a figure, in inches."""


def write_figures(
    folder: Path | str,
    lines: Sequence[Line],
    views: Mapping[str, FeatureView] | None = None,
    client: int | None = None,
) -> list[Path]:
    """Write every figure that the runs have numbers for, as PNG and as PDF.

    Parameters
    ----------
    folder
        Where to; it is made.
    lines
        What to draw.
    views, client
        Features to draw too, and how they are marked (see `make_content`).

    Returns
    -------
    list
        The files.
    """
    shown = [line for line in lines if line.rounds]
    makers: dict[str, Callable[[Any, Sequence[Line]], None]] = {
        "rounds": _over_rounds,
        "groups": _groups,
        "bytes": _over_bytes,
        "seconds": _over_seconds,
        "classes": _classes,
    }
    make_folder(Path(folder))
    written = []
    for name, make in makers.items() if shown else ():
        figure = _figure()
        make(figure.subplots(), shown)
        written += _kept(figure, Path(folder), name)
    if views:
        figure = _figure()
        _norms(figure.subplots(), views)
        written += _kept(figure, Path(folder), "norms")
        figure = _figure()
        draw_map(figure, views, client)
        written += _kept(figure, Path(folder), "features")
    return written


def _kept(figure: Figure, folder: Path, name: str) -> list[Path]:
    paths = [folder / f"{name}.{kind}" for kind in KINDS]
    for path in paths:
        write_atomic(path, _rendered(figure, path.suffix[1:]))
    return paths


def _figure() -> Figure:
    # Imported here: matplotlib is slow to load and most reports draw nothing.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _rendered(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    # No date inside: the same runs give the same file.
    stamp = {"CreationDate": None} if kind == "pdf" else {}
    figure.savefig(buffer, format=kind, dpi=200, metadata=stamp)
    return buffer.getvalue()


def _curves(axes: Any, lines: Sequence[Line], at: Callable[[Line], Sequence[Any]]) -> None:
    for number, line in enumerate(lines):
        points = [
            (x, 100 * mean, 100 * (std or 0.0))
            for x, (mean, std) in zip(at(line), line.curve("accuracy"), strict=True)
            if x is not None and mean is not None
        ]
        x, mean, std = zip(*points, strict=True)
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(x, mean, color=colour, label=line.label, linewidth=1.5)
        low = [m - s for m, s in zip(mean, std, strict=True)]
        high = [m + s for m, s in zip(mean, std, strict=True)]
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_ylabel("accuracy (%)")
    _finish(axes)


def _over_rounds(axes: Any, lines: Sequence[Line]) -> None:
    axes.set_xlabel("round")
    _curves(axes, lines, lambda line: line.rounds)


def _over_bytes(axes: Any, lines: Sequence[Line]) -> None:
    axes.set_xlabel("traffic (GB)")
    _curves(axes, lines, lambda line: [None if n is None else n / GB for n in line.spent(traffic)])


def _over_seconds(axes: Any, lines: Sequence[Line]) -> None:
    axes.set_xlabel("seconds")
    _curves(axes, lines, lambda line: line.spent(seconds))


def _groups(axes: Any, lines: Sequence[Line]) -> None:
    width = 0.8 / len(lines)
    for number, line in enumerate(lines):
        found = [(at, *line.score(key)) for at, key in enumerate(GROUPS)]
        known = [(at, 100 * mean, 100 * (std or 0)) for at, mean, std in found if mean is not None]
        if known:
            at, mean, std = zip(*known, strict=True)
            places = [place - 0.4 + width * (number + 0.5) for place in at]
            colour = COLOURS[number % len(COLOURS)]
            axes.bar(places, mean, width, yerr=std, color=colour, label=line.label, capsize=2)
    axes.set_xticks(range(len(GROUPS)), GROUPS)
    axes.set_ylabel("accuracy (%)")
    _finish(axes)


def _classes(axes: Any, lines: Sequence[Line]) -> None:
    for number, line in enumerate(lines):
        values = line.per_class()
        counts = class_counts(line)
        whole = len(counts) == len(values)
        order = by_frequency([round(n) for n in counts]) if whole else range(len(values))
        points = [(place, values[c][0]) for place, c in enumerate(order)]
        known = [(place, 100 * value) for place, value in points if value is not None]
        if known:
            colour = COLOURS[number % len(COLOURS)]
            marker = "o" if len(values) <= 20 else ""
            axes.plot(*zip(*known, strict=True), color=colour, label=line.label, marker=marker)
    axes.set_xlabel("classes, from the most to the least frequent")
    axes.set_ylabel("accuracy (%)")
    _finish(axes)


def _norms(axes: Any, views: Mapping[str, FeatureView]) -> None:
    for number, (label, view) in enumerate(views.items()):
        norms = view.norms.mean(axis=0)[by_frequency(view.class_counts)]
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(norms, color=colour, label=label, marker="o" if len(norms) <= 20 else "")
    axes.set_xlabel("classes, from the most to the least frequent")
    axes.set_ylabel("length of the class vector")
    axes.set_ylim(bottom=0)
    _finish(axes)


def _finish(axes: Any) -> None:
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7, frameon=False)
