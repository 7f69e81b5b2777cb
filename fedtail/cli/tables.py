"""Tables for the terminal: readable at 80 columns, numbers never cut."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from fedtail.callbacks import Record

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


def show_run(
    console: Console, title: str, history: Sequence[Record], server_data: str = ""
) -> None:
    """Print one run's last numbers."""
    from fedtail.study.lines import Line
    from fedtail.study.runs import Run
    from fedtail.study.tables import as_text

    run = Run(Path(), {}, [dict(record) for record in history], True)
    console.print(as_text([Line(title, (run,), server_data=server_data)], console.width), end="")
