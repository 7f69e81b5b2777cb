"""What the page shows, as plain JSON data that stays small whatever the runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedtail.errors import FedtailError
from fedtail.metrics.curves import traffic
from fedtail.metrics.groups import ShotGroups
from fedtail.metrics.scores import LESS_IS_BETTER, SCORES
from fedtail.report.by_client import by_client
from fedtail.report.facts import cautions, head_facts
from fedtail.report.features import GROUPS, SIDES, FeatureView
from fedtail.study.lines import Line, MeanAndDeviation, differing, make_lines, moments, seconds
from fedtail.study.runs import Plain, Run
from fedtail.study.tables import TITLES
from fedtail.version import __version__

MOST_CELLS = 20_000
"""Cells of a heat map; of a larger split the first clients are shown."""
MOST_POINTS = 1000
"""Points of a curve; of a longer one every so many rounds are shown, and the last."""


def make_content(
    runs: Sequence[Run],
    views: Mapping[str, FeatureView] | None = None,
    client: int | None = None,
) -> Plain:
    """Return everything that the page shows of some runs.

    Parameters
    ----------
    runs
        The runs.
    views
        Features by the label of their line, if they are to be shown.
    client
        Whose majority, minority and missing classes the features are first marked by; by default
        the marks are many, medium and few.
    """
    lines = make_lines(runs)
    firsts = [line.runs[0] for line in lines]
    different = differing(firsts, lambda key: True)
    names = named_classes(runs)
    return {
        "fedtail": __version__,
        "scores": [{"key": key, "title": TITLES[key]} for key in SCORES],
        "facts": head_facts(lines),
        "cautions": cautions(lines),
        "classes": names,
        "lines": [_line(line, lines[0], names) for line in lines],
        "runs": [_run(run, number) for number, line in enumerate(lines) for run in line.runs],
        "splits": _splits(lines),
        "clients": [
            {"line": number, **found}
            for number, line in enumerate(lines)
            for run in line.runs
            if (found := by_client(run)) is not None
        ],
        "differences": [
            {"key": key, "values": [first.settings.get(key) for first in firsts]}
            for key in different
        ],
        "shared": {
            key: value
            for key, value in (firsts[0].settings if firsts else {}).items()
            if key not in {*different, "seed", "name"}
        },
        "environments": _environments(lines),
        "features": [
            _features(view, number, client)
            for number, line in enumerate(lines)
            if (view := (views or {}).get(line.label)) is not None
        ],
        "marks": {"groups": GROUPS, "sides": SIDES, "client": client},
    }


def _line(line: Line, first: Line, names: Sequence[str]) -> Plain:
    kept = thinned(len(line.rounds))
    counts = class_counts(line)
    return {
        "label": line.label,
        "method": line.runs[0].method,
        "classes": _own_names(line, names),
        "seeds": [run.seed for run in line.runs],
        "rounds": _pick(line.rounds, kept),
        "curves": {key: _band(_pick(line.curve(key), kept)) for key in SCORES},
        "bytes": [_rounded(value, 0) for value in _pick(line.spent(traffic), kept)],
        "seconds": [_rounded(value, 2) for value in _pick(line.spent(seconds), kept)],
        "scores": {key: _pair(line.score(key)) for key in SCORES},
        "better": [key for key in SCORES if _surely_better(line, first, key)],
        "total_bytes": _rounded(line.bytes, 0),
        "total_seconds": _rounded(line.seconds, 2),
        "per_class": _band(line.per_class()),
        "counts": counts,
        "groups": _groups(line, counts),
        "confusion": _confusion(line),
        "validation": _validation(line),
    }


def _surely_better(line: Line, first: Line, key: str) -> bool:
    """Whether the interval of the difference to the first line, paired by seed, excludes zero."""
    found = line.above(first, key)
    return found is not None and found.sure and (found.mean < 0) == (key in LESS_IS_BETTER)


def _validation(line: Line) -> Plain | None:
    """Return the scores on what clients hold out, over rounds; nothing if nobody holds out."""
    histories = [
        {r["round"]: r["validation"] for r in run.records if r.get("validation")}
        for run in line.runs
    ]
    rounds = sorted({at for history in histories for at in history})
    if not rounds:
        return None
    shown = _pick(rounds, thinned(len(rounds)))

    def pair(key: str, at: int) -> MeanAndDeviation:
        return moments([(history.get(at) or {}).get(key) for history in histories])

    return {
        "rounds": shown,
        "curves": {key: _band([pair(key, at) for at in shown]) for key in SCORES},
    }


def _run(run: Run, line: int) -> Plain:
    return {
        "folder": run.path.name or str(run.path),
        "line": line,
        "seed": run.seed,
        "done": run.records[-1]["round"] if run.records else 0,
        "rounds": run.settings.get("rounds"),
        "finished": run.finished,
    }


def thinned(points: int) -> list[int]:
    """Return which points of a curve are shown: all, or every so many and the last."""
    step = -(-points // MOST_POINTS) or 1
    return sorted({*range(0, points, step), points - 1} - {-1})


def _pick(values: Sequence[Any], kept: Sequence[int]) -> list[Any]:
    return [values[at] for at in kept]


def _rounded(value: float | None, digits: int = 5) -> float | int | None:
    if value is None:
        return None
    return round(value) if digits == 0 else round(value, digits)


def _pair(pair: MeanAndDeviation) -> list[float | int | None]:
    return [_rounded(value) for value in pair]


def _band(pairs: Sequence[MeanAndDeviation]) -> Plain:
    return {
        "mean": [_rounded(mean) for mean, _ in pairs],
        "std": [_rounded(std) for _, std in pairs],
    }


def named_classes(runs: Sequence[Run]) -> list[str]:
    """Return what the classes of some runs are called: their names, or their numbers."""
    named = next((run.confusion.get("classes") for run in runs if run.confusion), None)
    if isinstance(named, list):
        return [str(name) for name in named]
    longest = max((len((run.tested or {}).get("per_class") or []) for run in runs), default=0)
    held = max((len((run.split or {}).get("class_counts") or []) for run in runs), default=0)
    return [str(number) for number in range(max(longest, held))]


def _own_names(line: Line, names: Sequence[str]) -> list[str] | None:
    """Return the class names of a line whose data have others than the report's first; rare."""
    own = named_classes(line.runs)
    # A run that still trains has not written its names, and its classes are but numbers.
    named = any(run.confusion for run in line.runs) and own != list(names)
    return own if own and (named or len(own) != len(names)) else None


def class_counts(line: Line) -> list[float]:
    """Return the training samples of each class, on average over seeds."""
    rows = [run.split["class_counts"] for run in line.runs if run.split and _has_counts(run.split)]
    same = [row for row in rows if len(row) == len(rows[0])]
    return [round(moments(column)[0] or 0, 1) for column in zip(*same, strict=True)]


def _has_counts(split: Plain) -> bool:
    counts = split.get("class_counts")
    return isinstance(counts, list) and all(isinstance(n, int | float) for n in counts)


def _groups(line: Line, counts: Sequence[float]) -> dict[str, list[int]]:
    """Return the classes of each shot group; none if the counts or the definition are not known."""
    prefix = "groups."
    found = {k: v for k, v in line.runs[0].settings.items() if k.startswith(prefix)}
    plain = {key.removeprefix(prefix): value for key, value in found.items()}
    if not counts or not plain:
        return {}
    try:
        chosen = ShotGroups.model_validate(plain)
        return {k: list(v) for k, v in chosen.assign([round(n) for n in counts]).items()}
    except FedtailError:  # a group of the user's own, from a plugin
        return {}


def _confusion(line: Line) -> Plain | None:
    """Return the confusion counts of the shipped models, added over seeds."""
    tables = [_table(run) for run in line.runs if run.confusion is not None]
    tables = [table for table in tables if table.shape == tables[0].shape]
    if not tables or tables[0].size > MOST_CELLS:
        return None
    return {"seeds": len(tables), "counts": np.sum(tables, axis=0).tolist()}


def _table(run: Run) -> np.ndarray:
    try:
        table = np.asarray((run.confusion or {}).get("confusion"), dtype=np.int64)
    except (TypeError, ValueError):
        table = np.empty(0, dtype=np.int64)
    if table.ndim != 2 or table.shape[0] != table.shape[1]:
        raise FedtailError(f"'{run.path / 'confusion.json'}' is not a table of counts")
    return table


def _splits(lines: Sequence[Line]) -> list[Plain]:
    """Return each split once, with the runs that used it."""
    found: dict[str, Plain] = {}
    for number, line in enumerate(lines):
        for run in line.runs:
            counts = (run.split or {}).get("counts")
            if run.split is None or not counts:
                continue
            key = str(run.split.get("digest", run.path))
            shown = max(1, MOST_CELLS // max(1, len(counts[0])))
            entry = found.setdefault(
                key,
                {
                    "seed": run.seed,
                    "clients": len(counts),
                    "names": [str(name) for name in run.split.get("clients") or []][:shown],
                    "line": number,
                    "counts": counts[:shown],
                    "statistics": run.split.get("statistics") or {},
                    "lines": [],
                },
            )
            if line.label not in entry["lines"]:
                entry["lines"].append(line.label)
    return list(found.values())


def _features(view: FeatureView, line: int, client: int | None) -> Plain:
    """Return a view; a mark of a class is one digit, so that those of many clients stay small."""
    shown = range(min(len(view.counts), max(1, MOST_CELLS // len(view.classes))))
    clients = sorted({*shown, *([] if client is None else [client])})
    return {
        "line": line,
        "seed": view.seed,
        "counts": view.class_counts,
        "labels": view.labels.tolist(),
        "predicted": view.predicted.tolist(),
        "x": view.points[:, 0].tolist(),
        "y": view.points[:, 1].tolist(),
        "groups": _digits(view.marks(), GROUPS),
        "clients": len(view.counts),
        "sides": {str(k): _digits(view.marks(k), SIDES) for k in clients},
        "norms": [[_rounded(norm, 4) for norm in row] for row in view.norms.tolist()],
    }


def _digits(marks: Sequence[str], names: Sequence[str]) -> str:
    """Return which of three names each mark is; 3 for a class in no group."""
    return "".join(str(names.index(mark)) if mark in names else "3" for mark in marks)


def _environments(lines: Sequence[Line]) -> list[Plain]:
    """Return each environment once, without the command, and how many runs had it."""
    found: dict[str, Plain] = {}
    for line in lines:
        for run in line.runs:
            if run.environment is None:
                continue
            values = {k: v for k, v in run.environment.items() if k != "command"}
            entry = found.setdefault(
                json.dumps(values, sort_keys=True), {"runs": 0, "values": values, "commands": []}
            )
            entry["runs"] += 1
            command = " ".join(map(str, run.environment.get("command") or []))
            if command and command not in entry["commands"]:
                entry["commands"].append(command)
    return list(found.values())
