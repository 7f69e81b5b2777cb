"""The first trials of a search: the method as it is, then points spread evenly over its ranges.

All methods are tried at the same rates. Of a few random ones some method would have several that
suit it, and another none, in whatever setting they are compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

from optuna import Study
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial
from scipy.stats.qmc import Halton

from fedtail.described import parse_value

LOCAL_RATE = "local.lr"
"""The field whose values all methods share."""


class FixedDraw(BaseSampler):
    """Draws what it was given.

    Parameters
    ----------
    values
        A value for each field.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Leave no field to be drawn together with others."""
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Draw nothing together."""
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, name: str, distribution: BaseDistribution
    ) -> Any:
        """Return the value of a field."""
        return self._values[name]


def first_draw(space: Mapping[str, BaseDistribution], number: int, method: Any) -> dict[str, Any]:
    """Return the values of one of the first trials.

    The first has those of the method, moved into the ranges; the others are points of Halton's
    sequence after (1/2, 1/3, 1/5, ...), which fills a space evenly at any number of points. The
    rate is its first coordinate, whatever else a method has.

    Parameters
    ----------
    space
        What is searched.
    number
        The trial's, from 0.
    method
        With the values that are tried first.
    """
    if number == 0 or not space:
        return {path: _within(each, _value(method, path)) for path, each in space.items()}
    sequence = Halton(len(space), scramble=False)
    sequence.fast_forward(number + 1)
    (point,) = sequence.random(1)
    order = sorted(space, key=lambda path: path != LOCAL_RATE)
    return {path: _at(space[path], float(u)) for path, u in zip(order, point, strict=True)}


def _value(method: Any, path: str) -> Any:
    """Return the value that a method has of a field; nothing if it has no such part."""

    def of(path: str) -> Any:
        return reduce(lambda part, name: getattr(part, name, None), path.split("."), method)

    value = of(path)
    return of(f"loss.{path}") if value is None else value  # a field may be short for the loss's


def _within(distribution: Any, value: Any) -> Any:
    """Return the nearest value of a range; its middle for what is no number or not on the list."""
    if isinstance(distribution, CategoricalDistribution):
        named = getattr(value, "name", value)  # a part of the method is typed by its name
        same = (choice for choice in distribution.choices if _read(choice) == named)
        return next(same, _at(distribution, 0.5))
    if not isinstance(value, int | float):
        return _at(distribution, 0.5)
    return min(max(value, distribution.low), distribution.high)


def _read(choice: Any) -> Any:
    return parse_value(choice) if isinstance(choice, str) else choice


def _at(distribution: Any, u: float) -> Any:
    """Return the value at a fraction 0 <= u < 1 of a range, or of the list of values."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[int(u * len(distribution.choices))]
    low, high = distribution.low, distribution.high
    whole = isinstance(low, int)
    top = high + 1 if whole else high  # the last whole number is as likely as the others
    value = low * (top / low) ** u if distribution.log else low + u * (top - low)
    return int(value) if whole else value
