"""Updates as numbers that are added up: what may be encrypted, and what may get noise.

The server needs of a summable group only a sum over clients. Here one client's update becomes flat
vectors such that the plain sum of all clients' vectors is all the server has to know: a mean is
sent as n_k t with n_k beside it, rows of some classes as rows of all classes with a 1 beside those
that are there. The numbers that are not tensors are added up as well, so that nobody's count of
samples is seen.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedtail.errors import FedtailError
from fedtail.privacy.gaussian import add_noise
from fedtail.protocol import Payload, Scalar, Sum

WHOLE, PART = "whole", "part"
"""What is added up over all updates, and what over those with the same value of a scalar."""

SAMPLES = "samples"
"""The scalar that means are weighted by."""

GAIN = 1024.0
"""What gradients are multiplied by: encryption has an absolute error, and they are small numbers.

Means are multiplied by the samples, which does the same.
"""


class NotASum(FedtailError):
    """A method sends something that is not declared to be summed."""


@dataclass(frozen=True)
class Addend:
    """One client's part of a sum.

    Attributes
    ----------
    within
        Whose vectors are added up: of the updates for which this is the same.
    form
        What the numbers are, as JSON; addends with another form cannot be added.
    numbers
        The vector, in float64.
    """

    within: str
    form: str
    numbers: Tensor


def addends(payload: Payload, echoed: Mapping[str, Scalar], num_classes: int) -> dict[str, Addend]:
    """Return the vectors of one update, under `WHOLE` and, where the method has parts, `PART`.

    Parameters
    ----------
    payload
        The update.
    echoed
        The scalars of the task: an equal one in the update tells nothing new, and stays as it is.
    num_classes
        How many rows a table of classes has.
    """
    check_summable(payload, echoed)
    weight = float(payload.scalars.get(SAMPLES, 1))
    own = own_scalars(payload, echoed)
    sides: dict[str, tuple[list[Any], list[Tensor]]] = {WHOLE: ([], []), PART: ([], [])}
    where = ""
    for group in sorted(payload.summable):
        sum_ = payload.sums.get(group, Sum())
        if sum_.within:
            where = f"{sum_.within}={payload.scalars[sum_.within]}"
        forms, vectors = sides[PART if sum_.within else WHOLE]
        tensors = payload.group(group)
        if sum_.how == "classes":
            tensors = dense_rows(tensors, num_classes)
        for name, t in sorted(tensors.items()):
            kind = str(t.dtype).removeprefix("torch.")
            forms.append([group, name, sum_.how, kind, list(t.shape)])
            factor = weight if sum_.how == "mean" else gain(t.dtype)
            vectors.append(t.detach().cpu().reshape(-1).double() * factor)
    whole = json.dumps({"scalars": sorted(own), "items": sides[WHOLE][0]})
    first = torch.tensor([weight, *(float(own[name]) for name in sorted(own))], dtype=torch.float64)
    result = {WHOLE: Addend("", whole, torch.cat([first, *sides[WHOLE][1]]))}
    if sides[PART][0]:
        form = json.dumps({"scalars": [], "items": sides[PART][0]})
        result[PART] = Addend(where, form, torch.cat([first[:1], *sides[PART][1]]))
    return result


def gain(dtype: torch.dtype) -> float:
    """Return what a sum is multiplied by while it travels; counts are whole and large enough."""
    return GAIN if dtype.is_floating_point else 1.0


def check_summable(payload: Payload, echoed: Mapping[str, Scalar]) -> None:
    """Refuse an update of which the server would need more than a sum."""
    for name in payload.tensors:
        group = name.partition("/")[0]
        if group not in payload.summable | payload.released:
            raise NotASum(f"it sends '{group}', which is not declared to be summed")
    for name, value in payload.scalars.items():
        if isinstance(value, str) and echoed.get(name) != value:
            raise NotASum(f"it sends the text '{name}', which cannot be summed")


def own_scalars(payload: Payload, echoed: Mapping[str, Scalar]) -> dict[str, float]:
    """Return the numbers that the client found out itself."""
    return {
        name: float(value)
        for name, value in payload.scalars.items()
        if not isinstance(value, str) and not (name in echoed and echoed[name] == value)
    }


def dense_rows(table: Mapping[str, Tensor], num_classes: int) -> dict[str, Tensor]:
    """Return rows of some classes as rows of all, zero where there were none.

    ``classes`` becomes the number of rows of each class: 1 or 0.
    """
    index = table["classes"].cpu()
    there = torch.bincount(index, minlength=num_classes)
    dense = {"classes": there}
    for name, t in table.items():
        if name != "classes":
            rows = torch.zeros(num_classes, *t.shape[1:], dtype=t.dtype)
            dense[name] = rows.index_add_(0, index, t.cpu())
    return dense


def form_length(form: str) -> int:
    """Return how many numbers a vector of that form has."""
    plan = json.loads(form)
    sizes: list[int] = [math.prod(shape) for *_, shape in plan["items"]]
    return 1 + len(plan["scalars"]) + sum(sizes)


@dataclass(frozen=True)
class Total:
    """A sum of addends, taken apart again.

    Attributes
    ----------
    weight
        The sum of the clients' weights.
    count
        How many addends there are.
    scalars
        The means of the numbers that are not tensors.
    items
        Group, name, how and sum of each tensor; whole numbers are float64, too.
    """

    weight: float
    count: int
    scalars: dict[str, float]
    items: list[tuple[str, str, str, torch.dtype, Tensor]]

    @classmethod
    def of(cls, form: str, numbers: Tensor, count: int) -> Total:
        """Return the parts of a vector of that form."""
        plan = json.loads(form)
        names: Sequence[str] = plan["scalars"]
        sizes = [math.prod(shape) for *_, shape in plan["items"]]
        values = (numbers[1 : 1 + len(names)] / count).tolist()
        pieces = torch.split(numbers[1 + len(names) :], sizes)
        items = []
        for (group, name, how, kind, shape), piece in zip(plan["items"], pieces, strict=True):
            dtype = getattr(torch, kind)
            factor = 1.0 if how == "mean" else gain(dtype)
            items.append((group, name, how, dtype, piece.reshape(shape) / factor))
        return cls(float(numbers[0]), count, dict(zip(names, values, strict=True)), items)

    def noised(self, asked: int, sigma: float, generator: torch.Generator) -> Total:
        """Return the sums with N(0, σ²) in every number, and means over all who were asked.

        How many answered, and how many hold a class, is not told apart: with privacy all have rows
        of all classes.
        """
        items = []
        for group, name, how, dtype, sum_ in self.items:
            if not dtype.is_floating_point:
                items.append((group, name, how, dtype, torch.full_like(sum_, asked)))
                continue
            noisy = add_noise(sum_, sigma, generator) if sigma else sum_
            # A sum is of counts, and below zero there are none.
            items.append((group, name, how, dtype, noisy.clamp(min=0) if how == "sum" else noisy))
        return Total(float(asked), self.count, self.scalars, items)

    def tensors(self, first: bool) -> dict[str, Tensor]:
        """Return what stands for one update: every one the mean, the first one also the sums.

        The server half then computes from equal means their mean, and from one sum and zeros their
        sum. Whole numbers are rounded; those of a mean are step counters.
        """
        found = {}
        for group, name, how, dtype, sum_ in self.items:
            if how == "classes":
                continue
            if how == "mean":
                value = sum_ / self.weight if self.weight else torch.zeros_like(sum_)
            else:
                value = sum_ if first else torch.zeros_like(sum_)
            found[f"{group}/{name}"] = (
                value.to(dtype) if dtype.is_floating_point else value.round().to(dtype)
            )
        return {**found, **self.tables()}

    def tables(self) -> dict[str, Tensor]:
        """Return the rows of the classes that somebody sent, each the mean over those who did."""
        found = {}
        for group in {g for g, _, how, *_ in self.items if how == "classes"}:
            table = {name: (dtype, t) for g, name, _, dtype, t in self.items if g == group}
            there = table.pop("classes")[1].round()
            classes = torch.nonzero(there > 0)[:, 0]
            found[f"{group}/classes"] = classes
            for name, (dtype, t) in table.items():
                by = there[classes].reshape(-1, *[1] * (t.ndim - 1))
                found[f"{group}/{name}"] = (t[classes] / by).to(dtype)
        return found
