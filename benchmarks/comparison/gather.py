"""Finished runs of the comparison as plain data."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from fedtail.metrics.scores import SCORES
from fedtail.study.runs import Run
from fedtail.study.study import Study
from fedtail.study.tune import Found

FACTS = ("commit", "fedtail", "torch", "python", "platform")
DRAWS = "even"
"""How trials are drawn (`fedtail/study/draws.py`); of results that do not say it, at random."""
LAST = 10
"""Rounds at the end whose tests are averaged, beside the round that is kept."""


def protocol_of(cell: str) -> str:
    """Return the letter of a cell's protocol."""
    return cell.partition("_")[0]


def entry(tuned: Found, study: Study) -> dict[str, Any]:
    """Return what is kept of one method in one cell."""
    line = study.lines[0]
    environment = [run.environment or {} for run in line.runs]
    return {
        "words": tuned.words,
        "draws": DRAWS if tuned.trials else None,
        "validation": tuned.score,
        "trials": tuned.trials,
        "given_up": tuned.given_up,
        "failed": tuned.failed,
        "seeds": [run.seed for run in line.runs],
        "kept": {
            key: [_rounded((run.tested or {}).get(key)) for run in line.runs] for key in SCORES
        },
        "last": {key: [_rounded(_last(run, key)) for run in line.runs] for key in SCORES},
        "bytes": line.bytes,
        "seconds": line.seconds,
        "load": [each.get("load") for each in environment],
        "failures": {str(seed): reason for seed, reason in line.failures.items()},
        **{fact: sorted({str(each.get(fact)) for each in environment}) for fact in FACTS},
    }


def _last(run: Run, key: str) -> float | None:
    end = run.records[-1]["round"]  # a run with patience ends before its last planned round
    late = [record.get(key) for record in run.records if record["round"] > end - LAST]
    known = [value for value in late if value is not None]
    return fmean(known) if known else None


def _rounded(value: Any) -> float | None:
    return None if value is None else round(float(value), 5)
