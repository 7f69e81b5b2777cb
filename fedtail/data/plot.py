"""Splits to look at: a table and shaded blocks for the terminal, a figure for a file."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from fedtail.errors import unknown_name
from fedtail.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedtail.data.split import Split

MANY_CLIENTS = 50
SHOWN_ROWS = 25
MANY_CLASSES = 20
RANGES = 10
MOST_DRAWN = 1000
"""Rows and columns of a figure at most: of more clients or classes one stands for several."""
LONGEST_NAME = 16
"""Longer names of clients are cut beside the blocks."""
BLOCKS = " ░▒▓█"
TERMINAL_COLOURS = ("grey37", "blue", "cyan", "green", "yellow", "red")


def count_table(
    split: Split, class_names: Sequence[str] | None = None, clients: Sequence[str] = ()
) -> Table:
    """Return clients x classes; beyond 50 clients the first 25, beyond 20 classes in ranges."""
    names = clients or split.names()
    edges = _edges(split.num_classes, MANY_CLASSES, RANGES)
    shown = _shown(len(split))
    title = f"{len(split)} clients, {split.statistics.sizes.sum()} samples"
    # Long class names are folded where the terminal is narrow; numbers are never cut.
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=0)
    table.add_column("client", justify="right", no_wrap=True)
    ranges = split.ranges(edges)
    largest = np.maximum(ranges.sum(axis=0), 1)
    for heading, count in zip(_headings(edges, class_names), largest.tolist(), strict=True):
        width = len(str(count))
        table.add_column(escape(heading), justify="right", overflow="fold", min_width=width)
    for heading in ("samples", "classes"):
        table.add_column(heading, justify="right", no_wrap=True)
    sizes, classes = split.statistics.sizes, split.statistics.classes
    for k in range(shown):
        cells = [str(n) if n else "·" for n in ranges[k].tolist()]
        cells = [escape(names[k]), *cells, str(sizes[k]), str(classes[k])]
        table.add_row(*cells, end_section=k == shown - 1)
    if shown < len(split):
        for name, over in (("min", np.min), ("median", np.median), ("max", np.max)):
            columns = [*ranges.T, sizes, classes]
            table.add_row(name, *(f"{over(column):g}" for column in columns))
    total = split.statistics.class_counts
    held = np.add.reduceat(total, edges[:-1]).tolist()
    table.add_row("all", *map(str, held), str(total.sum()), str(np.count_nonzero(total)))
    if len(split.server):
        own = np.bincount(split.labels[split.server], minlength=split.num_classes)
        held = np.add.reduceat(own, edges[:-1]).tolist()
        table.add_row("server", *map(str, held), str(own.sum()), str(np.count_nonzero(own)))
    if split.held_out:
        apart = split.held_counts
        held = np.add.reduceat(apart, edges[:-1]).tolist()
        table.add_row("held out", *map(str, held), str(apart.sum()), str(np.count_nonzero(apart)))
    return table


def terminal(split: Split, width: int = 60, clients: Sequence[str] = ()) -> Text:
    """Return one line a client, one block a class: the fuller and warmer, the more samples.

    Parameters
    ----------
    split
        The split to draw.
    width
        Blocks in a line at most; with more classes a block stands for a range of them.
    clients
        The names of the clients; their numbers if not given.
    """
    names = [name[:LONGEST_NAME] for name in clients or split.names()][: _shown(len(split))]
    margin = max(6, *(len(name) for name in names))
    edges = _edges(split.num_classes, width, width)
    ranges = split.ranges(edges)
    repeat = max(1, min(4, width // ranges.shape[1]))
    top = np.log1p(max(1, ranges.max()))
    text = Text()
    for k in range(_shown(len(split))):
        text.append(f"{names[k]:>{margin}} ")
        for n in ranges[k].tolist():
            level = np.log1p(n) / top
            block = BLOCKS[int(np.ceil(level * (len(BLOCKS) - 1)))]
            colour = TERMINAL_COLOURS[int(np.ceil(level * (len(TERMINAL_COLOURS) - 1)))]
            text.append(block * repeat, style=colour)
        text.append(f" {split.statistics.sizes[k]}\n")
    if _shown(len(split)) < len(split):
        text.append(f"{'':{margin}} ... and {len(split) - SHOWN_ROWS} more clients\n")
    classes = f"classes 0 to {split.num_classes - 1}"
    text.append(f"{'':{margin}} {classes}, left to right; 1 to {ranges.max()} samples")
    return text


def draw_split(split: Split, path: Path | str, class_names: Sequence[str] | None = None) -> None:
    """Write a figure: clients x classes as a heat map, and the class counts as bars above it."""
    # Imported here: matplotlib is slow to load and most runs draw nothing.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    clients, classes = len(split), split.num_classes
    size = (min(14.0, 4.0 + 0.25 * classes), min(12.0, 4.0 + 0.12 * clients))
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    bars, heat = figure.subplots(2, 1, sharex=True, height_ratios=[1, 3])
    total = split.statistics.class_counts
    bars.bar(np.arange(classes), total, color="tab:blue")
    if total.max() > 20 * max(1, total.min()):
        bars.set_yscale("log")
    bars.set_ylabel("samples")
    bars.set_title("\n".join(split.summary()), fontsize=8, loc="left")
    rows, columns = (_edges(each, MOST_DRAWN, MOST_DRAWN) for each in (clients, classes))
    shown = np.ma.masked_equal(split.ranges(columns, rows), 0)
    norm = LogNorm(vmin=1, vmax=max(2, int(shown.max())))
    extent = (-0.5, classes - 0.5, clients - 0.5, -0.5)
    image = heat.imshow(
        shown, aspect="auto", interpolation="nearest", norm=norm, cmap="viridis", extent=extent
    )
    heat.set_xlabel("class")
    heat.set_ylabel("client")
    heat.xaxis.set_major_locator(MaxNLocator(integer=True))
    heat.yaxis.set_major_locator(MaxNLocator(integer=True))
    if class_names is not None and classes <= MANY_CLASSES:
        heat.set_xticks(np.arange(classes), map(literal, class_names), rotation=45, ha="right")
    cell = [
        f"{np.diff(edges).max()} {what}"
        for edges, what in ((rows, "clients"), (columns, "classes"))
        if len(edges) <= edges[-1]
    ]
    label = f"samples of up to {' and '.join(cell)}" if cell else "samples"
    figure.colorbar(image, ax=heat, label=label)
    write_atomic(Path(path), _rendered(figure, Path(path).suffix.removeprefix(".") or "png"))


def literal(name: str) -> str:
    """Return a name as Matplotlib draws it letter by letter: between dollars it reads formulas."""
    return name.replace("$", r"\$")


def in_legend(name: str) -> str:
    """Return a name for a legend, where Matplotlib leaves out what begins with an underscore."""
    return literal(f" {name}" if name.startswith("_") else name)


def _rendered(figure: Figure, kind: str) -> bytes:
    known = figure.canvas.get_supported_filetypes()
    if kind.lower() not in known:
        raise unknown_name("picture format", kind, known)
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind.lower(), dpi=150)
    return buffer.getvalue()


def _shown(clients: int) -> int:
    return clients if clients <= MANY_CLIENTS else SHOWN_ROWS


def _edges(classes: int, limit: int, ranges: int) -> np.ndarray:
    """Return the borders of class ranges: one class each, or at most `ranges` of them."""
    if classes <= limit:
        return np.arange(classes + 1)
    return np.linspace(0, classes, ranges + 1).astype(np.int64)


def _headings(edges: np.ndarray, class_names: Sequence[str] | None) -> list[str]:
    pairs = zip(edges[:-1].tolist(), (edges[1:] - 1).tolist(), strict=True)
    if class_names is not None and edges[-1] == len(edges) - 1:
        return [class_names[first] for first, _ in pairs]
    return [str(first) if first == last else f"{first}-{last}" for first, last in pairs]
