"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from rich.table import Table

from fedtail.metrics import human_bytes

SCORES = {
    "all": "accuracy",
    "many": "many",
    "medium": "medium",
    "few": "few",
    "worst class": "worst_class",
}

History = Sequence[Mapping[str, Any]]


def summary(history: History, title: str) -> Table:
    """Return one run's last numbers."""
    return comparison({title: [history]})


def comparison(
    runs: Mapping[str, Sequence[History]], failed: Mapping[str, str] | None = None
) -> Table:
    """Return a line a method: mean (and deviation) over seeds of the last round."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("run", no_wrap=True)
    for heading in [*SCORES, "traffic", "time"]:
        table.add_column(heading, justify="right", no_wrap=True)
    for name, histories in runs.items():
        if histories:
            table.add_row(name, *_cells(histories))
    for name, reason in (failed or {}).items():
        table.add_row(name, f"failed: {reason}")
    return table


def _cells(histories: Sequence[History]) -> list[str]:
    cells = [_percent([history[-1][key] for history in histories]) for key in SCORES.values()]
    traffic = fmean(sum(r["bytes_up"] + r["bytes_down"] for r in history) for history in histories)
    seconds = fmean(sum(r["seconds"] for r in history) for history in histories)
    return [*cells, human_bytes(round(traffic)), f"{seconds:.0f} s"]


def _percent(values: Sequence[float | None]) -> str:
    known = [100 * value for value in values if value is not None]
    if not known:
        return "-"
    spread = f" ±{stdev(known):.1f}" if len(known) > 1 else ""
    return f"{fmean(known):.1f}{spread}"
