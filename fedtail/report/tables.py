"""The summary as CSV for a program and as LaTeX for a paper."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence

from fedtail.metrics.groups import by_frequency
from fedtail.metrics.scores import SCORES
from fedtail.report.content import TITLES
from fedtail.report.features import FeatureView
from fedtail.report.lines import Line

IN_PAPER = ("accuracy", "many", "medium", "few")
"""The columns of the LaTeX table."""
SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "…": r"\dots{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}


def as_csv(lines: Sequence[Line]) -> str:
    """Return a header and a row a line: mean and deviation over seeds of the last tested round."""
    parts = [f"{key}_{part}" for key in SCORES for part in ("mean", "std")]
    rows = []
    for line in lines:
        seeds = " ".join(str(run.seed) for run in line.runs)
        numbers = [value for key in SCORES for value in line.score(key)]
        rows.append([line.label, seeds, *numbers, line.bytes, line.seconds])
    return _written(["method", "seeds", *parts, "bytes", "seconds"], rows)


def features_csv(views: Mapping[str, FeatureView], client: int | None = None) -> str:
    """Return a row a test sample: its class, the mark of the class, and where the map puts it."""
    head = ["method", "seed", "sample", "class", "mark", "predicted", "x", "y"]
    rows = []
    for label, view in views.items():
        marks = view.marks(client)
        columns = (view.positions, view.labels, view.predicted, view.points)
        for sample, c, guess, (x, y) in zip(*(column.tolist() for column in columns), strict=True):
            told = [sample, view.classes[c], marks[c], view.classes[guess], x, y]
            rows.append([label, view.seed, *told])
    return _written(head, rows)


def norms_csv(views: Mapping[str, FeatureView], client: int | None = None) -> str:
    """Return a row a class and head, from the most to the least frequent class: ‖w_c‖."""
    head = ["method", "seed", "head", "class", "mark", "samples", "norm"]
    rows = []
    for label, view in views.items():
        marks, counts = view.marks(client), view.class_counts
        for number, norms in enumerate(view.norms.tolist()):
            for c in by_frequency(counts):
                told = [view.classes[c], marks[c], counts[c], norms[c]]
                rows.append([label, view.seed, number, *told])
    return _written(head, rows)


def _written(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return text.getvalue()


def as_latex(lines: Sequence[Line], columns: Sequence[str] = IN_PAPER) -> str:
    """Return a table in per cent for the package ``booktabs``; the best mean of a column is bold.

    Parameters
    ----------
    lines
        The rows.
    columns
        Scores between 0 and 1, of which more is better.
    """
    best = {
        key: max(known)
        if (known := [_percent(line, key) for line in lines if _has(line, key)])
        else None
        for key in columns
    }
    rows = [
        " & ".join([escape(line.label), *(_cell(line, key, best[key]) for key in columns)]) + r" \\"
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
            "",
        ]
    )


def escape(text: str) -> str:
    """Return text that LaTeX prints as it stands."""
    return "".join(SPECIAL.get(letter, letter) for letter in text)


def _has(line: Line, key: str) -> bool:
    return line.score(key)[0] is not None


def _percent(line: Line, key: str) -> float:
    """Return a mean as it is printed, so that equal numbers are equally bold."""
    return round(100 * (line.score(key)[0] or 0.0), 1)


def _cell(line: Line, key: str, best: float | None) -> str:
    mean, std = line.score(key)
    if mean is None:
        return "--"
    shown = f"{100 * mean:.1f}"
    deviation = "" if std is None else rf" \pm {100 * std:.1f}"
    bold = rf"\mathbf{{{shown}}}" if _percent(line, key) == best else shown
    return f"${bold}{deviation}$"
