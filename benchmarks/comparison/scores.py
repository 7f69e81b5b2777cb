"""Every score of the comparison, kind by kind: what the tables of balanced accuracy leave out."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from benchmarks.comparison.overview import Cell, by_kind, is_bound, marked, mean_score

COLUMNS = {
    "balanced": ("kept", "balanced_accuracy"),
    "last rounds": ("last", "balanced_accuracy"),
    "many": ("kept", "many"),
    "medium": ("kept", "medium"),
    "few": ("kept", "few"),
    "worst class": ("kept", "worst_class"),
    "all samples": ("kept", "accuracy"),
    "calibration error": ("kept", "ece"),
}
"""Heads of columns, and where a result file has their numbers."""
COSTS = {"traffic": "bytes", "time": "seconds"}


def text(cells: Mapping[str, Cell]) -> str:
    """Return the page."""
    parts = [
        f"## {kind} ({len(found)})\n\n{table(found)}\n" for kind, found in by_kind(cells).items()
    ]
    return f"""# All scores of the comparison

<!-- Written by `python -m benchmarks.comparison.page` from benchmarks/results/comparison. -->

What [the comparison](comparison.md) measured, in percent, means over the cells of a kind (their
number in brackets) and over seeds, best balanced accuracy first. A method stands where it has all
cells of a kind. *Balanced*, and all that follows but the *last rounds*, is of the round that
validation chose; *last rounds* is the mean of the tests in the last ten, often the last one alone.
*Worst class*: the lowest accuracy of a class. *All samples*: plain accuracy on the test set.
*Calibration error*: how far confidence is from accuracy, in fifteen bins; less is better.
*Traffic* and *time* are multiples of FedAvg's. Validations are not in the traffic; `slac`, `ccvr`
and others that ask clients again after training do so in each, which can be more than all training
sends. Times are of a machine that did other work too, and of several versions of the code, on
seconds or minutes: twice or half of FedAvg's is not surely different.

{chr(10).join(parts)}"""


def table(cells: Mapping[str, Cell]) -> str:
    """Return a row a method that all cells have."""
    methods = [m for m in next(iter(cells.values())) if all(m in cell for cell in cells.values())]
    rows = {method: scores(method, cells) for method in methods}
    columns = [c for c in COLUMNS if any(row[c] is not None for row in rows.values())]
    heads = ["", *columns, *COSTS]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for method in sorted(rows, key=lambda m: rows[m]["balanced"] or 0.0, reverse=True):
        found = [_percent(rows[method][column]) for column in columns]
        found += [_cost(method, key, cells) for key in COSTS.values()]
        lines.append(f"| {marked(method)} | {' | '.join(found)} |")
    return "\n".join(lines)


def scores(method: str, cells: Mapping[str, Cell]) -> dict[str, float | None]:
    """Return a method's numbers by column; none where there is no such class."""
    return {column: mean_score(method, cells, key, when) for column, (when, key) in COLUMNS.items()}


def cost(method: str, key: str, cells: Mapping[str, Cell]) -> float:
    """Return the mean over cells of what a method takes, over what FedAvg does."""
    return fmean(cell[method][key] / cell["fedavg"][key] for cell in cells.values())


def _cost(method: str, key: str, cells: Mapping[str, Cell]) -> str:
    """Return a cost for a table; who brings the samples to one place sends more than is counted."""
    return "–" if key == "bytes" and is_bound(method) else f"{cost(method, key, cells):.2f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"
