"""Runs that differ in nothing but their seed are one line: mean and deviation over the seeds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import fmean, stdev
from typing import Any

from fedtail.folder import FREE
from fedtail.metrics.curves import traffic
from fedtail.study.paired import Difference, difference
from fedtail.study.runs import Run

SHOWN_DIFFERENCES = 3
"""So many settings tell two lines apart in a label; all are in the table of settings."""

MeanAndDeviation = tuple[float | None, float | None]
"""Mean and sample standard deviation; `None` where there is none."""


@dataclass(frozen=True, repr=False)
class Line:
    """One method with one set of hyper-parameters.

    Attributes
    ----------
    label
        The words that were typed for it; of runs that are of no study, the method and the settings
        that tell it from others.
    runs
        One for each seed that has one, by seed.
    failures
        Why other seeds of a study have none.
    server_data
        What the method needed on the server, in words; nothing for most methods.
    """

    label: str
    runs: tuple[Run, ...]
    failures: Mapping[int, str] = field(default_factory=dict)
    server_data: str = ""

    def __repr__(self) -> str:
        """Return which runs it is of: all that they hold would be many pages."""
        return f"Line({self.label!r}, seeds={[run.seed for run in self.runs]})"

    def score(self, key: str) -> MeanAndDeviation:
        """Return a score of the model that each run ships, over seeds."""
        return moments(list(self.by_seed(key).values()))

    def by_seed(self, key: str) -> dict[int, float]:
        """Return that score by seed, where there is one."""
        found = {run.seed: (run.tested or {}).get(key) for run in self.runs}
        return {seed: value for seed, value in found.items() if value is not None}

    def above(self, other: Line, key: str) -> Difference | None:
        """Return how much a score is above that of another line, over the seeds of both."""
        return difference(self.by_seed(key), other.by_seed(key))

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
        """Return the accuracy of each class with the model that is shipped, over seeds."""
        rows = [(run.tested or {}).get("per_class") or [] for run in self.runs]
        classes = max(map(len, rows), default=0)
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

    A label is what was typed for the runs of a study. Otherwise it is the method's name, with the
    settings of the protocol that differ anywhere, and those of the method where it appears more
    than once; so are lines told apart for which the same was typed. A seed that is there twice, in
    two folders, is of a line more.
    """
    groups: dict[str, list[Run]] = {}
    seen: Counter[str] = Counter()
    for run in runs:
        key = json.dumps([run.label, identity(run)], sort_keys=True)
        again = f"{key} {run.seed}"
        groups.setdefault(f"{key} {seen[again]}", []).append(run)
        seen[again] += 1
    kept = list(groups.values())
    firsts = [members[0] for members in kept]
    lines: list[Line] = []
    for members in kept:
        label = _label(members[0], firsts)
        taken = sum(line.label == label or line.label.startswith(f"{label} (") for line in lines)
        name = f"{label} ({taken + 1})" if taken else label
        lines.append(Line(name, tuple(sorted(members, key=lambda run: run.seed))))
    return lines


def _label(run: Run, others: Sequence[Run]) -> str:
    if run.label:
        alike = [other for other in others if other.label == run.label]
        told = differing(alike, lambda key: True)
    else:
        alike = [other for other in others if other.method == run.method]
        told = differing(alike, lambda key: key.startswith("method."))
        told += differing(others, lambda key: not key.startswith("method."))
    words = [f"{short(key)}={run.settings.get(key, '–')}" for key in told]
    more = ["…"] if len(words) > SHOWN_DIFFERENCES else []
    return ", ".join([run.label or run.method, *words[:SHOWN_DIFFERENCES], *more])


def identity(run: Run) -> dict[str, Any]:
    """Return the settings that decide what a run computes, but for its seed."""
    return {
        key: value
        for key, value in run.settings.items()
        if key.partition(".")[0] not in {*FREE, "seed"}
    }


def differing(runs: Sequence[Run], among: Callable[[str], bool]) -> list[str]:
    """Return the settings that are not the same in all runs, sorted."""
    settings = [identity(run) for run in runs]
    keys = sorted({key for each in settings for key in each if among(key)})
    return [key for key in keys if len({json.dumps(each.get(key)) for each in settings}) > 1]


def short(key: str) -> str:
    """Return a dotted name without what is plain from the context."""
    return key.removeprefix("method.")
