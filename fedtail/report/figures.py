"""Figures for papers: PNG for a look, PDF for LaTeX, SVG for the web and for drawing programs."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtail.data.plot import in_legend, literal
from fedtail.files import make_folder, write_atomic
from fedtail.metrics.curves import traffic
from fedtail.metrics.groups import by_frequency
from fedtail.metrics.traffic import GB
from fedtail.report.content import class_counts, named_classes
from fedtail.report.feature_map import draw_map
from fedtail.report.features import GROUPS, FeatureView
from fedtail.study.lines import Line, seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
"""Okabe and Ito's colours, told apart by people with any kind of colour vision."""
KINDS = ("png", "pdf", "svg")
SIZE = (5.0, 3.2)
"""Of a figure, in inches."""
NAMED_CLASSES = 25
"""With more classes the axis says that they go from head to tail, and names none."""


def write_figures(
    folder: Path | str,
    lines: Sequence[Line],
    views: Mapping[str, FeatureView] | None = None,
    client: int | None = None,
) -> list[Path]:
    """Write every figure that the runs have numbers for, as PNG, PDF and SVG.

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
        "few": _few_over_rounds,
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
    from matplotlib import rc_context

    buffer = io.BytesIO()
    # No date inside, and no random names: the same runs give the same file.
    stamp = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
    with rc_context({"svg.hashsalt": "fedtail", "svg.fonttype": "none"}):
        figure.savefig(buffer, format=kind, dpi=200, metadata=stamp)
    return buffer.getvalue()


def _curves(
    axes: Any,
    lines: Sequence[Line],
    at: Callable[[Line], Sequence[Any]],
    key: str = "accuracy",
) -> None:
    for number, line in enumerate(lines):
        points = [
            (x, 100 * mean, 100 * (std or 0.0))
            for x, (mean, std) in zip(at(line), line.curve(key), strict=True)
            if x is not None and mean is not None
        ]
        if not points:
            continue
        x, mean, std = zip(*points, strict=True)
        colour = COLOURS[number % len(COLOURS)]
        marker = "o" if len(points) == 1 else ""  # a line of one point is not seen
        axes.plot(x, mean, color=colour, label=in_legend(line.label), linewidth=1.5, marker=marker)
        low = [m - s for m, s in zip(mean, std, strict=True)]
        high = [m + s for m, s in zip(mean, std, strict=True)]
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_ylabel("accuracy (%)" if key == "accuracy" else f"accuracy, {key} (%)")
    _finish(axes)


def _over_rounds(axes: Any, lines: Sequence[Line]) -> None:
    axes.set_xlabel("round")
    _curves(axes, lines, lambda line: line.rounds)


def _few_over_rounds(axes: Any, lines: Sequence[Line]) -> None:
    axes.set_xlabel("round")
    _curves(axes, lines, lambda line: line.rounds, "few")


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
            axes.bar(
                places, mean, width, yerr=std, color=colour, label=in_legend(line.label), capsize=2
            )
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
            axes.plot(
                *zip(*known, strict=True), color=colour, label=in_legend(line.label), marker=marker
            )
    _name_classes(axes, named_classes(lines[0].runs), class_counts(lines[0]))
    axes.set_ylabel("accuracy (%)")
    _finish(axes)


def _name_classes(axes: Any, names: Sequence[str], counts: Sequence[float]) -> None:
    """Write the names of the classes, from head to tail, where there is room for them."""
    if len(names) == len(counts) <= NAMED_CLASSES:
        shown = [literal(names[c]) for c in by_frequency([round(n) for n in counts])]
        slanted = max(map(len, shown), default=0) > 3
        turn = {"rotation": 45, "ha": "right"} if slanted else {}
        axes.set_xticks(range(len(shown)), shown, fontsize=8, **turn)
    axes.set_xlabel("classes, from the most to the least frequent")


def _norms(axes: Any, views: Mapping[str, FeatureView]) -> None:
    for number, (label, view) in enumerate(views.items()):
        norms = view.norms.mean(axis=0)[by_frequency(view.class_counts)]
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(
            norms, color=colour, label=in_legend(label), marker="o" if len(norms) <= 20 else ""
        )
    first = next(iter(views.values()))
    _name_classes(axes, first.classes, first.class_counts)
    axes.set_ylabel("length of the class vector")
    axes.set_ylim(bottom=0)
    _finish(axes)


def _finish(axes: Any) -> None:
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7, frameon=False)
