"""A table of a paper: a TOML file with the protocol, and a CSV file with the printed values.

What the tables of a paper share stands in its ``protocol.toml``, below the table's own.

A row of the CSV names a data set, a setting (parts separated by semicolons), a method, a metric and
its value. The TOML says what each of these names means as fields of an experiment; a cell is one
combination of data set, setting and method, with all its metrics.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

import fedtail
from fedtail.config import Config
from fedtail.described import load_experiment, make_experiment, override
from fedtail.errors import FedtailError, unknown_name
from fedtail.experiment import Experiment

Scale = Literal["full", "reduced", "smoke"]
Fields = dict[str, Any]
DEVIATION = "_std"
"""Ending of metrics that are the deviation of another one over seeds."""


class Rule(Config):
    """Fields of the cells that all given names match."""

    dataset: str | None = Field(None, description="the data set, as the reference spells it")
    setting: str | None = Field(None, description="one part of the setting")
    method: str | None = Field(None, description="the method")
    scale: Scale | None = Field(None, description="at which scale alone, and then applied last")
    fields: Fields = Field(description="what these cells have of their own")


class Scaled(Config):
    """What is other at a smaller scale."""

    reduced: Fields = Field({}, description="what --scale reduced changes")
    smoke: Fields = Field({}, description="what --scale smoke changes")

    def at(self, scale: Scale) -> Fields:
        """Return what one scale changes; nothing at full scale."""
        return {"full": {}, "reduced": self.reduced, "smoke": self.smoke}[scale]


class Meaning(Scaled):
    """What a name of the reference stands for."""

    fields: Fields = Field({}, description="fields of the experiment")
    not_run: str = Field("", description="why cells with this name cannot be run, if they cannot")
    minus: str = Field("", description="of a method: the one that it is compared with")


class Score(Config):
    """How a metric of the reference is computed from a run."""

    measure: str = Field("score", description="which function of `fedtail.reproduce.measures`")
    key: str = Field("accuracy", description="which number of a round")
    last: int = Field(1, ge=1, description="mean over the tested ones of so many last rounds")
    factor: float = Field(100.0, description="unit: 100 for percent")
    against: Literal["minus", "gain", "saving"] = Field(
        "minus", description="how a method is compared with another: a − b, (a − b)/b or (b − a)/b"
    )
    not_run: str = Field("", description="why this metric is not measured, if it is not")


class Size(Config):
    """How large a data set is before its tail is cut, for the estimate of the cost."""

    per_class: int = Field(ge=1, description="training samples of a class")
    classes: int = Field(ge=1, description="classes")


class Recipe(Scaled):
    """One table: what `papers/PAPER/TABLE.toml` holds."""

    title: str = Field(description="what the table shows")
    where: str = Field(description="its place in the paper")
    seeds: int = Field(3, ge=1, description="runs of each cell, each with a seed of its own")
    notes: tuple[str, ...] = Field(
        (), description="what the paper leaves open, and what was chosen"
    )
    experiment: Fields = Field({}, description="the protocol that all cells share")
    dataset: dict[str, Meaning] = Field({}, description="data sets by their printed names")
    setting: dict[str, Meaning] = Field({}, description="parts of settings by their printed names")
    method: dict[str, Meaning] = Field({}, description="methods by their printed names")
    metric: dict[str, Score] = Field({}, description="metrics by their names in the reference")
    rule: tuple[Rule, ...] = Field((), description="fields of some cells")
    size: dict[str, Size] = Field({}, description="sizes of the data sets")
    reduced_seeds: int = Field(3, ge=1, description="runs of each cell at the reduced scale")
    reduced_is: str = Field("", description="what the reduced scale is, in words")

    def scale_is(self, scale: Scale) -> str:
        """Return what a scale is, in words."""
        words = {"full": "as in the paper", "smoke": "seconds, on tiny data: numbers mean nothing"}
        return words.get(scale, self.reduced_is)


@dataclass(frozen=True)
class Cell:
    """One combination of data set, setting and method, and what the paper printed for it."""

    dataset: str
    setting: str
    method: str
    values: Mapping[str, float] = field(default_factory=dict)

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the setting."""
        return tuple(part.strip() for part in self.setting.split(";"))

    def __str__(self) -> str:
        return " | ".join((self.dataset, self.setting, self.method))


@dataclass(frozen=True)
class Table:
    """A recipe with its name and its cells."""

    name: str
    recipe: Recipe
    cells: tuple[Cell, ...]

    def meanings(self, cell: Cell) -> Iterator[Meaning]:
        """Yield what the names of a cell stand for: data set, parts of the setting, method."""
        yield self._meaning("dataset", self.recipe.dataset, cell.dataset)
        for part in cell.parts:
            yield self._meaning("setting", self.recipe.setting, part)
        yield self._meaning("method", self.recipe.method, cell.method)

    def not_run(self, cell: Cell) -> str:
        """Return why a cell is not run; nothing if it is."""
        reasons = [meaning.not_run for meaning in self.meanings(cell) if meaning.not_run]
        scores = [self.score(metric) for metric in cell.values]
        if not reasons and all(score.not_run for score in scores):
            reasons = [score.not_run for score in scores]
        return reasons[0] if reasons else ""

    def base(self, cell: Cell) -> Cell | None:
        """Return the cell that a cell is compared with, if its values are differences."""
        minus = list(self.meanings(cell))[-1].minus
        return Cell(cell.dataset, cell.setting, minus) if minus else None

    def score(self, metric: str) -> Score:
        """Return how a metric is measured; a deviation is that of its metric over seeds."""
        metric = metric.removesuffix(DEVIATION)
        if metric not in self.recipe.metric:
            raise unknown_name(f"{self.name}: metric", metric, self.recipe.metric)
        return self.recipe.metric[metric]

    def seeds(self, scale: Scale) -> int:
        """Return how many runs a cell has."""
        if scale == "smoke":
            return 1
        return self.recipe.seeds if scale == "full" else self.recipe.reduced_seeds

    def experiment(self, cell: Cell, scale: Scale, seed: int) -> Experiment:
        """Return the experiment of one cell."""
        plain: Fields = {}
        meanings = list(self.meanings(cell))
        layers = [self.recipe.experiment, *(meaning.fields for meaning in meanings)]
        rules = [rule for rule in self.recipe.rule if _matches(rule, cell)]
        layers += [rule.fields for rule in rules if rule.scale is None]
        layers += [part.at(scale) for part in (self.recipe, *meanings)]
        layers += [rule.fields for rule in rules if rule.scale == scale]
        for layer in layers:
            for path, value in flattened(layer):
                override(plain, path, value)
        plain |= {"seed": seed, "name": f"{cell} seed {seed}"}
        try:
            return make_experiment(plain)
        except FedtailError as error:
            raise FedtailError(f"{self.name}, cell {cell}: {error}") from None

    def _meaning(self, kind: str, known: Mapping[str, Meaning], name: str) -> Meaning:
        if name not in known:
            raise unknown_name(f"{self.name}: {kind}", name, known)
        return known[name]


def flattened(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ``section.field`` and value of nested tables.

    A layer that names a component starts it afresh; only a method keeps what the layers below it
    say, for the methods of a table share their local training.
    """
    for key, value in fields.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and ("name" not in value or path == "method"):
            yield from flattened(value, f"{path}.")
        else:
            yield path, value


def papers_folder() -> Path:
    """Return where the recipes are: in the installed package, or beside it in a checkout."""
    package = Path(fedtail.__file__).parent
    return next((p for p in (package / "papers", package.parent / "papers") if p.is_dir()), package)


def recipes() -> list[str]:
    """Return the names of all tables, such as ``creff/table1``."""
    folder = papers_folder()
    return sorted(str(path.relative_to(folder).with_suffix("")) for path in folder.glob("*/*.csv"))


def find(name: str) -> Path:
    """Return the file of a table, or say which tables there are."""
    known = recipes()
    if name not in known:
        raise unknown_name("table", name, known)
    return papers_folder() / f"{name}.toml"


def load_recipe(name: str) -> Table:
    """Read a table by its name."""
    path = find(name)
    layers = [load_experiment(file) for file in (path.with_name("protocol.toml"), path)]
    plain = merged(*layers)
    try:
        recipe = Recipe.model_validate(plain)
    except FedtailError as error:
        raise FedtailError(f"{path.name}: {error}") from None
    return Table(name, recipe, _cells(path.with_suffix(".csv")))


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> Fields:
    """Return nested tables in one; where they differ, and for whole components, `above` counts."""
    both = {**below, **above}
    for key in below.keys() & above.keys():
        old, new = below[key], above[key]
        if isinstance(old, Mapping) and isinstance(new, Mapping) and "name" not in new:
            both[key] = merged(old, new)
    return both


def _cells(path: Path) -> tuple[Cell, ...]:
    values: dict[tuple[str, str, str], dict[str, float]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            key = (row["dataset"], row["setting"], row["method"])
            values.setdefault(key, {})[row["metric"]] = float(row["value"])
    return tuple(Cell(*key, values=metrics) for key, metrics in values.items())


def _matches(rule: Rule, cell: Cell) -> bool:
    return (
        rule.dataset in (None, cell.dataset)
        and rule.method in (None, cell.method)
        and (rule.setting is None or rule.setting in cell.parts)
    )
