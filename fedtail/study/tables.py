"""The lines of a study as a table for the terminal, CSV for a program and LaTeX for a paper."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from rich.text import Text

from fedtail.errors import FedtailError, shown
from fedtail.metrics import human_bytes
from fedtail.metrics.scores import LESS_IS_BETTER, SCORES
from fedtail.study.grid import Row, folded, grid
from fedtail.study.lines import Line, MeanAndDeviation
from fedtail.study.paired import Difference

TITLES = {
    "accuracy": "All",
    "balanced_accuracy": "Balanced",
    "many": "Many",
    "medium": "Medium",
    "few": "Few",
    "tail": "Tail",
    "worst_class": "Worst class",
    "loss": "Loss",
    "ece": "ECE",
}
"""Headings of the scores."""
IN_TERMINAL = ("accuracy", "many", "medium", "few", "worst_class")
IN_PAPER = ("accuracy", "many", "medium", "few")
"""The columns of the LaTeX table."""
COMPARED = ("accuracy", "few")
"""The scores whose differences the terminal shows; the files have those of all."""
SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "…": r"\dots{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    # What follows the end of a row in these would be read as its arguments.
    **{letter: f"{{{letter}}}" for letter in "[*"},
}


def as_text(lines: Sequence[Line], width: int) -> Text:
    """Return a row a line: mean and deviation over seeds; then the differences to the first."""
    headings = ("run", "all", "many", "medium", "few", "worst", "traffic", "time")
    text = grid(headings, [Row(line.label, _cells(line), _notes(line)) for line in lines], width)
    rows = [row for line in lines[1:] if (row := _difference_row(line, lines[0]))]
    if rows:
        said = f"difference to {lines[0].label}, seed by seed, with its 95 % interval"
        text.append("\n".join(["", *folded(said, " ", width), ""]))
        scores = [h for key in COMPARED for h in (TITLES[key].lower(), "interval", "p")]
        text.append(grid(["run", *scores], rows, width))
    return text


def _cells(line: Line) -> list[str]:
    if not line.runs:
        return ["failed"]
    traffic, took = round(line.bytes or 0), line.seconds or 0.0
    shown = [_percent(line.score(key)) for key in IN_TERMINAL]
    return [*shown, human_bytes(traffic), f"{took:.{int(took < 10)}f} s"]


def _percent(score: MeanAndDeviation) -> str:
    mean, std = score
    if mean is None:
        return "-"
    return f"{100 * mean:.1f}" + ("" if std is None else f"\n±{100 * std:.1f}")


def _notes(line: Line) -> list[tuple[str, str]]:
    notes = [(f"({line.server_data})", "dim")] if line.server_data else []
    for reason in dict.fromkeys(line.failures.values()):
        seeds = [str(seed) for seed, why in line.failures.items() if why == reason]
        plural = "s" if len(seeds) > 1 else ""
        notes.append((f"seed{plural} {', '.join(seeds)}: {reason}", "red"))
    return notes


def _difference_row(line: Line, first: Line) -> Row | None:
    """Return the differences that have an interval; bold where it excludes zero."""
    found = [line.above(first, key) for key in COMPARED]
    if not any(each is not None and each.p is not None for each in found):
        return None
    bold = [3 * at for at, each in enumerate(found) if each is not None and each.sure]
    return Row(line.label, [cell for each in found for cell in _compared(each)], bold=bold)


def _compared(found: Difference | None) -> list[str]:
    if found is None or found.low is None or found.high is None:
        return ["-"] * 3
    interval = f"[{100 * found.low:+.1f}, {100 * found.high:+.1f}]"
    return [f"{100 * found.mean:+.1f}", interval, f"{found.p:.2g}"]


def described_lines(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Return the lines as plain data, as ``comparison.json`` holds them."""
    return [
        {
            "method": line.label,
            "server_data": line.server_data,
            "seeds": [run.seed for run in line.runs],
            "failed": {str(seed): reason for seed, reason in line.failures.items()},
            "scores": {
                key: dict(zip(("mean", "std"), line.score(key), strict=True)) for key in SCORES
            },
            "differences": {
                key: None if (found := line.above(lines[0], key)) is None else asdict(found)
                for key in (SCORES if line is not lines[0] else ())
            },
            "bytes": None if line.bytes is None else round(line.bytes),
            "seconds": line.seconds,
        }
        for line in lines
    ]


def as_csv(lines: Sequence[Line]) -> str:
    """Return a header and a row a line.

    Mean and deviation over seeds of the model that is shipped, what it cost, and for each score the
    difference to the first line with its 95 % interval and p-value.
    """
    compared = ("difference", "low", "high", "p")
    head = [f"{key}_{part}" for key in SCORES for part in ("mean", "std")]
    tail = [f"{key}_{part}" for key in SCORES for part in compared]
    rows = []
    for line in lines:
        seeds = " ".join(str(run.seed) for run in line.runs)
        numbers = [value for key in SCORES for value in line.score(key)]
        failed = "; ".join(f"seed {seed}: {reason}" for seed, reason in line.failures.items())
        found = [None if line is lines[0] else line.above(lines[0], key) for key in SCORES]
        differences = [
            value
            for each in found
            for value in ([None] * 4 if each is None else (each.mean, each.low, each.high, each.p))
        ]
        cost = [line.bytes, line.seconds, failed, line.server_data]
        rows.append([line.label, seeds, *numbers, *cost, *differences])
    cost_head = ["bytes", "seconds", "failed", "server_data"]
    return written(["method", "seeds", *head, *cost_head, *tail], rows)


def written(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return CSV text."""
    # Lines end in "\n". So does a carriage return in a cell, which would end a row without quotes.
    text = io.StringIO(newline=None)
    writer = csv.writer(text)
    writer.writerow(head)
    writer.writerows(rows)
    return text.getvalue()


def as_latex(lines: Sequence[Line], columns: Sequence[str] = IN_PAPER) -> str:
    """Return a table in per cent for the package ``booktabs``.

    Bold is what is above the first line for sure: the 95 % interval of the difference, paired by
    seed, lies above zero.

    Parameters
    ----------
    lines
        The rows.
    columns
        Scores between 0 and 1, of which more is better.
    """
    known = [key for key in SCORES if key not in LESS_IS_BETTER]
    if isinstance(columns, str) or not columns or not set(columns) <= set(known):
        raise FedtailError(
            f"columns = {shown(columns)} is refused: give a list of {', '.join(known)}"
        )
    rows = [
        " & ".join([escape(line.label), *(_cell(line, lines[0], key) for key in columns)]) + r" \\"
        for line in lines
    ]
    head = " & ".join(["Method", *(TITLES[key] for key in columns)]) + r" \\"
    return "\n".join(
        [
            rf"\begin{{tabular}}{{l{'r' * len(columns)}}}",
            r"\toprule",
            head,
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            "% bold: the 95 % interval of the difference to the first row, paired by seed, lies "
            "above zero",
            "",
        ]
    )


def escape(text: str) -> str:
    """Return text that LaTeX prints as it stands."""
    return "".join(SPECIAL.get(letter, letter) for letter in text)


def _cell(line: Line, first: Line, key: str) -> str:
    mean, std = line.score(key)
    if mean is None:
        return "--"
    found = line.above(first, key)
    shown = f"{100 * mean:.1f}"
    better = found is not None and found.sure and found.mean > 0
    bold = rf"\mathbf{{{shown}}}" if better else shown
    deviation = "" if std is None else rf" \pm {100 * std:.1f}"
    return f"${bold}{deviation}$"
