"""Tables for the terminal: readable at 80 columns, numbers never cut."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.measure import measure_renderables
from rich.table import Table
from rich.text import Text

from fedtail.cli.results import SCORES, History, Line

NARROWEST = 64
"""A terminal with fewer columns wraps the lines; the numbers are still whole."""


def make_console() -> Console:
    """Return standard output; colours and live displays only where it is a terminal."""
    # Asked of the stream itself: rich takes FORCE_COLOR, common in CI, for a terminal.
    console = Console(force_terminal=sys.stdout.isatty())
    console.width = max(console.width, NARROWEST)
    return console


def say(line: str) -> None:
    """Print a line as it is, however wide the terminal is: a path in it can be copied."""
    make_console().print(line, soft_wrap=True, highlight=False, markup=False)


def show_run(console: Console, title: str, history: History, server_data: str = "") -> None:
    """Print one run's last numbers."""
    show_lines(console, [Line(title, {0: history}, server_data=server_data)])


def show_lines(console: Console, lines: Sequence[Line]) -> None:
    """Print a line a method: mean and deviation over seeds of the last round.

    Where this is too wide, the deviation stands below its mean.
    """
    wide = table(lines, " ")
    room = measure_renderables(console, console.options, [wide]).minimum
    names = max((len(line.label) for line in lines if len(line.histories) > 1), default=0)
    fits = room + min(names, 24) <= console.width
    console.print(wide if fits else table(lines, "\n"))


def table(lines: Sequence[Line], between: str) -> Table:
    """Return the table, with this between a mean and its deviation."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    made.add_column("run", overflow="fold", vertical="top")
    for heading in ("all", "many", "medium", "few", "worst\nclass", "traffic", "time"):
        made.add_column(heading, justify="right", no_wrap=True, vertical="top")
    for line in lines:
        made.add_row(_name(line), *_cells(line, between))
    return made


def _name(line: Line) -> Text:
    name = Text(line.label)
    if line.server_data:
        name.append(f"\n({line.server_data})", style="dim")
    for reason in dict.fromkeys(line.failures.values()):
        seeds = [str(seed) for seed, why in line.failures.items() if why == reason]
        plural = "s" if len(seeds) > 1 else ""
        name.append(f"\nseed{plural} {', '.join(seeds)}: {reason}", style="red")
    return name


def _cells(line: Line, between: str) -> list[str]:
    from fedtail.metrics import human_bytes

    if not line.histories:
        return ["failed"]
    cells = [_percent(line.score(key), between) for key in SCORES]
    return [*cells, human_bytes(round(line.traffic)), f"{line.seconds:.0f} s"]


def _percent(score: Mapping[str, Any], between: str) -> str:
    if score["mean"] is None:
        return "-"
    spread = "" if score["std"] is None else f"{between}±{100 * score['std']:.1f}"
    return f"{100 * score['mean']:.1f}{spread}"
