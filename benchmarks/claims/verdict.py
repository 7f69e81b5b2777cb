"""A claim, what the paper prints for it, what our runs give, and the verdict that follows."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.results_file import RESULTS
from fedtail.reproduce.cost import measured_speeds, network, samples_of
from fedtail.reproduce.recipe import Cell, Table, load_recipe
from fedtail.study.paired import Difference, difference

CLAIMS = Path(__file__).with_name("claims.toml")
RUNS = RESULTS / "reproduce"
SCALES = ("full", "reduced")
"""Whose runs count, the better first; a smoke run shows nothing."""
ENOUGH = 0.5
"""The share of the printed gain from which on a claim is reproduced, and not in order only."""
Verdict = Literal[
    "reproduced", "in order only", "open", "not reproduced", "not run", "not testable"
]


@dataclass(frozen=True)
class Claim:
    """`method` is above `beside` in one cell of a table."""

    paper: str
    says: str
    table: str
    dataset: str
    setting: str
    method: str
    beside: str
    metric: str = "accuracy"
    why: str = ""
    not_testable: str = ""

    def __str__(self) -> str:
        return f"{self.paper}: {self.says}"

    def recipe(self) -> Table:
        """Return the table as `fedtail reproduce` runs it."""
        return load_recipe(self.table)

    def cell(self, table: Table, method: str) -> Cell:
        """Return the one printed cell of a method."""
        named = (self.dataset, self.setting, method)
        (found,) = [c for c in table.cells if (c.dataset, c.setting, c.method) == named]
        return found

    def printed(self, table: Table) -> tuple[float, float]:
        """Return the paper's values of both."""
        high, low = (self.cell(table, name).values for name in (self.method, self.beside))
        return high[self.metric], low[self.metric]


@dataclass(frozen=True)
class Seen:
    """Our runs of a claim's cell: values by seed, and where they are from."""

    method: Sequence[float]
    beside: Sequence[float]
    source: Mapping[str, Any]

    @property
    def gain(self) -> Difference:
        """The difference, paired by seed."""
        ours, others = (dict(enumerate(values)) for values in (self.method, self.beside))
        found = difference(ours, others)
        assert found is not None
        return found


def claims() -> list[Claim]:
    """Return all claims, paper after paper."""
    plain = tomllib.loads(CLAIMS.read_text(encoding="utf-8"))
    return [Claim(**each) for each in plain["claim"]]


def results() -> list[dict[str, Any]]:
    """Return what `fedtail reproduce` has left, the larger scale first."""
    paths = sorted(RUNS.glob("*.json"))
    read = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    return sorted(
        (each for each in read if each["scale"] in SCALES), key=lambda r: SCALES.index(r["scale"])
    )


def seen(claim: Claim, known: Sequence[Mapping[str, Any]]) -> Seen | None:
    """Return the first runs that have both methods of a claim in its cell, all seeds of them."""
    for result in known:
        if result["table"] != claim.table:
            continue
        values = {
            n["method"]: n["ours"]
            for n in result["numbers"]
            if (n["dataset"], n["setting"], n["metric"])
            == (claim.dataset, claim.setting, claim.metric)
            and not n["failures"]
        }
        if values.get(claim.method) and values.get(claim.beside):
            return Seen(values[claim.method], values[claim.beside], result)
    return None


def judged(claim: Claim, found: Seen | None) -> Verdict:
    """Return the verdict on a claim."""
    if claim.not_testable:
        return "not testable"
    high, low = claim.printed(claim.recipe())
    return verdict(high - low, None if found is None else found.gain)


def verdict(printed: float, found: Difference | None) -> Verdict:
    """Judge a gain against the printed one.

    Reproduced: surely above zero (the 95 % interval over seeds excludes it) and at least half of
    what is printed. In order only: surely above, but less. Open: the interval holds zero.
    """
    if found is None:
        return "not run"
    if not found.sure:
        return "open"
    if found.mean < 0:
        return "not reproduced"
    return "reproduced" if found.mean >= ENOUGH * printed else "in order only"


def hours(claim: Claim, table: Table) -> float | None:
    """Return hours of one core for both methods as in the paper; nothing if it is not known."""
    total = 0.0
    for method in (claim.method, claim.beside):
        cell = claim.cell(table, method)
        if table.not_run(cell):
            return None
        experiment = table.experiment(cell, "full", seed=0)
        speed = measured_speeds().get(network(experiment.model))
        if speed is None:
            return None
        total += table.seeds("full") * samples_of(table, cell, experiment) / speed / 3600
    return total
