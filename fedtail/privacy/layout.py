"""An update as one vector of numbers that are only added up: what a secure sum is a sum of.

The server needs of each group only a sum over clients (`fedtail.forms`). Here an update becomes a
vector such that the sum of all clients' vectors is all the server has to know: a mean is sent as
n_k t with n_k beside it, rows of some classes as rows of all classes with a 1 beside those that are
there. Scalars are added up as well, so that nobody's count of samples is seen. What stands where
follows from the form alone, so that the vector says nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

import torch
from torch import Tensor

from fedtail.forms import CLASSES, ByClass, First, Form, Mean, Total
from fedtail.protocol import Payload, Scalar
from fedtail.totals import Key, Part, summed, weight

REAL_BITS = 35
"""f of a real number x that becomes rint(x·2^f): a sum of n numbers is off by n·2^-36 at most."""


def why_no_sum(form: Form) -> str:
    """Return why updates of this form cannot be summed before the server sees them, or nothing.

    Those that carry noise of their own may be seen.
    """
    if form.why:
        return "" if form.noisy else form.why
    for how in form.how.values():
        if isinstance(how, First):
            return "it takes the statistics of one client"
        if isinstance(how, Mean) and how.within and own(form, how.within):
            return f"which '{how.within}' each client chose is told one by one"
    return ""


def own(form: Form, scalar: str) -> bool:
    """Whether a scalar is the client's own: one that the server fixed tells nothing new."""
    number = form.scalars[scalar]
    return number.low < number.high


def part_of(form: Form) -> Part:
    """Return the part that updates of this form belong to, if the method has parts."""
    names = {how.within for how in form.how.values() if isinstance(how, Mean)} - {""}
    return next((int(form.scalars[name].low) for name in sorted(names)), None)


def part_of_task(task: Payload, form: Form) -> Part:
    """Return the part that the answer to a task belongs to, if the method has parts."""
    names = {how.within for how in form.how.values() if isinstance(how, Mean)} - {""}
    return next((task.scalars.get(name) for name in names), None)


class Slot(NamedTuple):
    """A stretch of the vector: a weight, a scalar, an indicator of classes, or a tensor.

    Attributes
    ----------
    whole
        Whether its numbers are whole, so that f = 0.
    """

    kind: str
    name: str
    shape: tuple[int, ...]
    whole: bool

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


def slots(form: Form, parts: bool) -> Iterator[Slot]:
    """Return what stands where in the vector of what has parts, or of all the rest."""
    names = sorted(n for n, how in form.how.items() if bool(getattr(how, "within", "")) == parts)
    for by in sorted({how.by for n in names if isinstance(how := form.how[n], Mean)}):
        number = form.scalars.get(by)
        yield Slot("weight", by, (), number is None or number.whole)
    if not parts:
        for name in sorted(form.scalars):
            if own(form, name):
                yield Slot("scalar", name, (), form.scalars[name].whole)
        yield from (Slot("holders", group, (c,), True) for group, c in sorted(form.rows.items()))
    for name in names:
        how, (shape, dtype, *_) = form.how[name], form.tensors[name]
        rows = (how.classes,) if isinstance(how, ByClass) else ()
        yield Slot("tensor", name, (*rows, *shape), not dtype.is_floating_point)


def length(form: Form, parts: bool) -> int:
    """Return how many numbers the vector has."""
    return sum(slot.size for slot in slots(form, parts))


def vector(answer: Payload, form: Form, parts: bool) -> Tensor:
    """Return an update as numbers to be added up, in float64."""
    pieces = [torch.zeros(0, dtype=torch.float64)]
    for kind, name, shape, _ in slots(form, parts):
        if kind == "weight":
            piece = torch.tensor(weight(answer.scalars, Mean(name)))
        elif kind == "scalar":
            piece = torch.tensor(float(answer.scalars[name]))
        elif kind == "holders":
            piece = torch.bincount(answer.tensors[f"{name}/{CLASSES}"], minlength=shape[0])
        else:
            piece = _scaled(answer, form, name, shape)
        pieces.append(piece.detach().cpu().reshape(-1).double())
    return torch.cat(pieces)


def _scaled(answer: Payload, form: Form, name: str, shape: tuple[int, ...]) -> Tensor:
    how, tensor = form.how[name], answer.tensors[name]
    if isinstance(how, ByClass):
        index = answer.tensors[f"{name.partition('/')[0]}/{CLASSES}"]
        tensor = torch.zeros(shape, dtype=tensor.dtype).index_add_(0, index, tensor)
    return tensor.double() * (weight(answer.scalars, how) if isinstance(how, Mean) else 1.0)


@dataclass
class Opened:
    """Sums as plain numbers: what a method is sent where they were secret, or get noise.

    Attributes
    ----------
    sums
        Of each tensor (and part, or class) the sum and its weight.
    counts
        How many updates are in the sum of a part; under None in all.
    """

    form: Form
    sums: dict[Key, tuple[Tensor, float]] = field(default_factory=dict)
    scalars: dict[str, float] = field(default_factory=dict)
    counts: dict[Part, int] = field(default_factory=dict)

    def read(self, numbers: Tensor, part: Part, count: int) -> None:
        """Take a sum of `count` vectors apart: of one part, or (None) of what has no parts."""
        found = list(slots(self.form, part is not None))
        pieces = torch.split(numbers, [slot.size for slot in found])
        by: dict[Scalar, float] = {}
        holders: dict[str, Tensor] = {}
        self.counts[part] = count
        for (kind, name, shape, _), piece in zip(found, pieces, strict=True):
            if kind == "weight":
                by[name] = float(piece[0])
            elif kind == "scalar":
                self.scalars[name] = float(piece[0])
            elif kind == "holders":
                holders[name] = piece
            elif isinstance(how := self.form.how[name], Mean):
                self.sums[name, part] = piece.reshape(shape), by[how.by]
            elif isinstance(how, Total):
                self.sums[name, part] = piece.reshape(shape), 1.0
            else:
                self._rows(name, piece.reshape(shape), holders[name.partition("/")[0]])

    def _rows(self, name: str, table: Tensor, holders: Tensor) -> None:
        for c in torch.nonzero(holders > 0)[:, 0].tolist():
            self.sums[name, c] = table[c], 1.0 if summed(self.form.how[name]) else float(holders[c])

    def value(self, key: Key) -> Tensor | None:
        """Return what a tensor comes to; nothing if nobody weighs anything."""
        total, by = self.sums.get(key, (None, 0.0))
        if total is None or not by:
            return None
        dtype, mean = self.form.tensors[key[0]].dtype, total / by
        # Whole numbers of a mean are step counters.
        return mean.to(dtype) if dtype.is_floating_point else mean.round().to(dtype)

    def seen(self) -> Iterator[Key]:
        """Return the tensors, and the parts or classes of each, that somebody sent."""
        return iter(self.sums)

    def count(self, key: Key) -> int:
        """Return how many updates are in it; how many hold a class is not told apart."""
        has_parts = bool(getattr(self.form.how[key[0]], "within", ""))
        return self.counts.get(key[1] if has_parts else None, 0)

    def scalar(self, name: str) -> Fraction:
        """Return the sum of a scalar."""
        number = self.form.scalars.get(name)
        if number is not None and not own(self.form, name):
            return Fraction(number.low) * self.counts.get(None, 0)
        return Fraction(self.scalars.get(name, 0.0))
