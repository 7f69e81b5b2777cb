"""Runs that differ in nothing but their seed are one line: mean and deviation over the seeds."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean, stdev
from typing import Any

from fedtail.folder import FREE
from fedtail.metrics.curves import traffic
from fedtail.report.runs import Run

SHOWN_DIFFERENCES = 3
"""So many settings tell two lines apart in a label; all are in the table of settings."""

MeanAndDeviation = tuple[float | None, float | None]
"""Mean and sample standard deviation; `None` where there is none."""


@dataclass(frozen=True)
class Line:
    """One method with one set of hyper-parameters.

    Attributes
    ----------
    label
        The method, and the settings that tell it from others of the report.
    runs
        One for each seed, by seed.
    """

    label: str
    runs: tuple[Run, ...]

    def score(self, key: str) -> MeanAndDeviation:
        """Return a score of the last tested round of each run, over seeds."""
        return moments([(run.tested or {}).get(key) for run in self.runs])

    def total(self, value: Callable[[dict[str, Any]], float]) -> float | None:
        """Return what all rounds of a run cost together, on average over seeds."""
        sums = [sum(map(value, run.records)) for run in self.runs if run.records]
        return fmean(sums) if sums else None

    @property
    def bytes(self) -> float | None:
        """Traffic of a run, both ways."""
        return self.total(traffic)

    @property
    def seconds(self) -> float | None:
        """How long a run takes."""
        return self.total(seconds)

    def curve(self, key: str) -> list[MeanAndDeviation]:
        """Return a score over `rounds`, over the seeds that have it there."""
        histories = [{r["round"]: r.get(key) for r in run.records} for run in self.runs]
        return [moments([history.get(at) for history in histories]) for at in self.rounds]

    def spent(self, value: Callable[[dict[str, Any]], float]) -> list[float | None]:
        """Return what was spent up to each of `rounds`, on average over seeds."""
        sums = []
        for run in self.runs:
            upto = accumulate(map(value, run.records))
            sums.append({r["round"]: total for r, total in zip(run.records, upto, strict=True)})
        return [moments([each.get(at) for each in sums])[0] for at in self.rounds]

    @property
    def rounds(self) -> list[int]:
        """The rounds that some seed has tested, ascending."""
        tested = {
            record["round"]
            for run in self.runs
            for record in run.records
            if record.get("accuracy") is not None
        }
        return sorted(tested)

    def per_class(self) -> list[MeanAndDeviation]:
        """Return the accuracy of each class in the last tested round, over seeds."""
        rows = [(run.tested or {}).get("per_class") or [] for run in self.runs]
        classes = max(map(len, rows))
        return [moments([row[c] for row in rows if c < len(row)]) for c in range(classes)]


def moments(values: Sequence[float | None]) -> MeanAndDeviation:
    """Return mean and sample deviation of the values that are there; one value has no deviation."""
    known = [value for value in values if value is not None]
    return (
        fmean(known) if known else None,
        stdev(known) if len(known) > 1 else None,
    )


def seconds(record: dict[str, Any]) -> float:
    """Return how long a round took."""
    return float(record.get("seconds") or 0.0)


def make_lines(runs: Sequence[Run]) -> list[Line]:
    """Return the lines of a report, in the order in which their first runs stand.

    A label is the method's name. Settings of the protocol that differ anywhere are added to every
    label, and settings of a method where the method appears more than once.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps(identity(run), sort_keys=True), []).append(run)
    kept = list(groups.values())
    firsts = [members[0] for members in kept]
    protocol = differing(firsts, lambda key: not key.startswith("method."))
    lines: list[Line] = []
    for members in kept:
        first = members[0]
        alike = [other for other in firsts if other.method == first.method]
        own = differing(alike, lambda key: key.startswith("method."))
        told = [f"{short(key)}={first.settings.get(key, '–')}" for key in (*own, *protocol)]
        more = ["…"] if len(told) > SHOWN_DIFFERENCES else []
        label = ", ".join([first.method, *told[:SHOWN_DIFFERENCES], *more])
        taken = sum(line.label == label or line.label.startswith(f"{label} (") for line in lines)
        name = f"{label} ({taken + 1})" if taken else label
        lines.append(Line(name, tuple(sorted(members, key=lambda run: run.seed))))
    return lines


def identity(run: Run) -> dict[str, Any]:
    """Return the settings that decide what a run computes, but for its seed."""
    return {
        key: value
        for key, value in run.settings.items()
        if key.partition(".")[0] not in {*FREE, "seed", "checkpoint_every"}
    }


def differing(runs: Sequence[Run], among: Callable[[str], bool]) -> list[str]:
    """Return the settings that are not the same in all runs, sorted."""
    settings = [identity(run) for run in runs]
    keys = sorted({key for each in settings for key in each if among(key)})
    return [key for key in keys if len({json.dumps(each.get(key)) for each in settings}) > 1]


def short(key: str) -> str:
    """Return a dotted name without what is plain from the context."""
    return key.removeprefix("method.")
