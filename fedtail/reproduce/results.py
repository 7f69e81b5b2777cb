"""A reproduced table as files: JSON for programs, CSV for spreadsheets, Markdown for people."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from fedtail.files import write_atomic
from fedtail.folder import environment
from fedtail.reproduce.compared import Compared
from fedtail.reproduce.recipe import Scale, Table
from fedtail.study.tables import written

HEADINGS = [
    "data",
    "setting",
    "method",
    "metric",
    "paper",
    "ours",
    "±",
    "seeds",
    "difference",
    "covered",
]


def as_rows(lines: Sequence[Compared]) -> list[list[str]]:
    """Return the headings, and a row of text for each printed number."""
    return [HEADINGS, *(_row(line) for line in lines)]


def _row(line: Compared) -> list[str]:
    return [_shown(value) for value in _values(line)]


def _values(line: Compared) -> list[str | float | None]:
    covered = {None: None, True: "yes", False: "no"}[line.covered]
    cell = line.cell
    names = [cell.dataset, cell.setting, cell.method, line.metric]
    numbers = [line.paper, line.mean, line.deviation, len(line.ours), line.difference]
    return [*names, *numbers, covered]


def _shown(value: str | float | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, str | int):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.2f}"


def as_plain(table: Table, scale: Scale, lines: Sequence[Compared]) -> dict[str, object]:
    """Return a table as plain data, with what it was made with."""
    return {
        "table": table.name,
        "where": table.recipe.where,
        "title": table.recipe.title,
        "scale": scale,
        "scale_is": table.recipe.scale_is(scale),
        "notes": list(table.recipe.notes),
        "environment": environment(),
        "numbers": [_plain(line) for line in lines],
    }


def write_tables(folder: Path, table: Table, scale: Scale, lines: Sequence[Compared]) -> None:
    """Write ``results.json``, ``results.csv`` and ``results.md``."""
    plain = as_plain(table, scale, lines)
    write_atomic(folder / "results.json", json.dumps(plain, indent=1, ensure_ascii=False) + "\n")
    write_atomic(folder / "results.csv", written(HEADINGS, map(_values, lines)))
    write_atomic(folder / "results.md", markdown(table, scale, as_rows(lines)))


def markdown(table: Table, scale: Scale, rows: Sequence[Sequence[str]]) -> str:
    """Return the table as Markdown, with its notes."""
    head, *body = rows
    lines = [f"# {table.recipe.where}: {table.recipe.title} (scale {scale})", ""]
    lines += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in body]
    if scale != "full":
        lines += ["", f"Scale {scale}: {table.recipe.scale_is(scale)}."]
    if table.recipe.notes:
        lines += ["", *(f"- {note}" for note in table.recipe.notes)]
    return "\n".join(lines) + "\n"


def _plain(line: Compared) -> dict[str, object]:
    cell = line.cell
    return {
        "dataset": cell.dataset,
        "setting": cell.setting,
        "method": cell.method,
        "metric": line.metric,
        "paper": line.paper,
        "ours": list(line.ours),
        "mean": line.mean,
        "deviation": line.deviation,
        "difference": line.difference,
        "covered": line.covered,
        "failures": list(line.failures),
    }
