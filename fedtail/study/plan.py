"""What a study is going to run: every combination of choices, each under its label and seed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from fedtail.callbacks.tracking import dotted
from fedtail.config import fields_of
from fedtail.described import apply, make_experiment, parse_value
from fedtail.errors import FedtailError, shown
from fedtail.experiment import Experiment
from fedtail.methods import Method
from fedtail.study.lines import short
from fedtail.study.runs import seeded
from fedtail.study.spec import apply_method, field_meant, folder_name, method_class, told_apart

Point = tuple[tuple[str, Any], ...]
"""One value for each choice, under its dotted name."""


@dataclass(frozen=True)
class Planned:
    """One run of a study, and the folder that it has or will have."""

    label: str
    seed: int
    experiment: Experiment
    path: Path


def make_plan(
    variants: Mapping[str, Callable[[int], Experiment]], seeds: Sequence[int], out: Path
) -> list[Planned]:
    """Return every run, all checked before the first one begins."""
    plan = []
    for label, variant in variants.items():
        for seed in seeds:
            try:
                experiment = variant(seed)
            except FedtailError as error:
                raise FedtailError(f"{label}: {error}") from None
            plan.append(Planned(label, seed, experiment, out / folder_name(label, seed)))
    return plan


def apart(plan: Sequence[Planned]) -> list[Planned]:
    """Return the plan with a folder for each label: names of folders have fewer letters."""
    owners: dict[Path, str] = {}
    found = []
    for planned in plan:
        if owners.setdefault(planned.path, planned.label) != planned.label:
            name = told_apart(planned.path.name, planned.label)
            planned = replace(planned, path=planned.path.with_name(name))
        found.append(planned)
    return found


def chosen(
    plain: Mapping[str, Any], choices: Mapping[str, Sequence[Any]]
) -> dict[str, Callable[[int], Experiment]]:
    """Return the experiment of every combination of choices, by label, for any seed.

    Parameters
    ----------
    plain
        The fields that all share.
    choices
        Values by dotted name. Of ``method`` they are as typed (``fedlc,tau=1``) or objects. A field
        of a method (``method.tau``, or ``tau``) is only for methods that have it.
    """
    given = {_full(path): _several(path, values) for path, values in choices.items()}
    methods = given.pop("method", None) or [None]
    found: dict[str, Callable[[int], Experiment]] = {}
    fitting: set[str] = set()
    for method in methods:
        base = dict(plain)
        words = _with_method(base, method, given)
        fits = {path: values for path, values in given.items() if _fits(base, path)}
        fitting |= fits.keys()
        for values in product(*fits.values()):
            point = tuple(zip(fits, values, strict=True))
            label = ",".join([words, *(f"{short(path)}={_word(value)}" for path, value in point)])
            found.setdefault(label, _variant(base, point, label))
    unused = [path for path in given if path not in fitting]
    if unused:
        meant = short(field_meant(unused[0], base))
        hint = f"; did you mean '{meant}'?" if meant else ""
        raise FedtailError(f"none of the methods has a field '{short(unused[0])}'{hint}")
    return found


def _several(path: str, values: Any) -> list[Any]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise FedtailError(f"'{path}' = {shown(values)} is refused: give a list of values to try")
    return list(values)


def _variant(base: Mapping[str, Any], point: Point, label: str) -> Callable[[int], Experiment]:
    def variant(seed: int) -> Experiment:
        changed = {**base, "seed": seed, "name": seeded(label, seed)}
        for path, value in point:
            apply(changed, path, parse_value(value) if isinstance(value, str) else value)
        return make_experiment(changed)

    return variant


def _with_method(base: dict[str, Any], method: Any, given: Collection[str]) -> str:
    """Set the method of plain fields, and return its words but for those of fields in `given`."""
    if isinstance(method, str):
        return apply_method(base, method)
    if method is not None:
        base["method"] = fields_of(method) if isinstance(method, Method) else method
    return words_of(make_experiment(base).method, given)


def words_of(method: Method[Any], given: Collection[str] = ()) -> str:
    """Return a method as one would type it: its name, and the fields that are not the default."""
    usual = dotted(type(method)().describe())
    described = dotted(method.describe()).items()
    own = {k: v for k, v in described if usual.get(k) != v and f"method.{k}" not in given}
    words = [f"{key.removesuffix('.name')}={_word(value)}" for key, value in own.items()]
    return ",".join([method.name, *words])


def _full(path: str) -> str:
    """Return the whole name of a field: what is none of the experiment is one of the method."""
    root = path.partition(".")[0]
    return path if root in Experiment.model_fields else f"method.{path}"


def _fits(base: Mapping[str, Any], path: str) -> bool:
    """Whether the method, if the field is one of a method, has it."""
    section, _, rest = path.partition(".")
    if section != "method":
        return True
    return rest.partition(".")[0] in method_class(base).model_fields


def _word(value: Any) -> str:
    """Return a value as it is typed."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(getattr(value, "name", value))
