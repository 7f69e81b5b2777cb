"""What comes of clients that trained together: answers, held against a form and added up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from fedtail.forms import Form, Mean, defect, sound
from fedtail.protocol import Payload
from fedtail.totals import StackedUpdates, Sums, weight
from fedtail.training.linear_block import Span


@dataclass(frozen=True)
class Trained:
    """What came of a block.

    Attributes
    ----------
    clients, announced
        Who they are, and how many samples each has.
    tensors
        What they answer, by flat names, with a dimension of clients in front.
    extras
        What each answers beside it.
    states
        What each remembers.
    """

    clients: list[int]
    announced: list[int]
    tensors: dict[str, Tensor]
    extras: list[Payload]
    states: list[dict[str, Tensor]]

    def payload(self, row: int) -> Payload:
        """Return the answer of one client."""
        own = {name: tensor[row].clone() for name, tensor in self.tensors.items()}
        more = self.extras[row]
        return Payload({**own, **more.tensors}, more.scalars)

    def sound(self, form: Form) -> list[bool]:
        """Whether each answer is what was declared."""
        mine = {n: look for n, look in form.tensors.items() if n in self.tensors}
        rest = replace(form, tensors={n: t for n, t in form.tensors.items() if n not in mine})
        if mine.keys() != self.tensors.keys():
            return [False] * len(self.clients)
        good = sound(self.tensors, mine).tolist() if mine else [True] * len(self.clients)
        return [
            ok and not defect(more, rest, samples)
            for ok, more, samples in zip(good, self.extras, self.announced, strict=True)
        ]

    def add_to(self, total: Sums, good: Sequence[bool]) -> None:
        """Add up the good answers."""
        total.add_stack(self.updates(good))

    def updates(self, good: Sequence[bool]) -> StackedUpdates:
        """Return the good answers as what is added up."""
        if all(good):
            return StackedUpdates(self.clients, self.tensors, self.extras)
        rows = [row for row, ok in enumerate(good) if ok]
        return StackedUpdates(
            [self.clients[row] for row in rows],
            {name: tensor[rows] for name, tensor in self.tensors.items()},
            [self.extras[row] for row in rows],
        )

    def nbytes(self) -> list[int]:
        """Return how large each answer is."""
        each = sum(t[0].numel() * t.element_size() for t in self.tensors.values())
        return [each + more.nbytes for more in self.extras]


@dataclass(frozen=True)
class Spanned(Trained):
    """What came of a block of wide linear classifiers, of whose weights there is only a sum.

    Attributes
    ----------
    span, weight
        What there is of the weights, and their flat name.
    """

    span: Span
    weight: str

    def sound(self, form: Form) -> list[bool]:
        """Whether each answer is what was declared; of the weights, as far as a bound tells."""
        rest = replace(form, tensors={n: t for n, t in form.tensors.items() if n != self.weight})
        look = form.tensors[self.weight]
        fits = (self.span.largest() <= min(look.high, -look.low)).tolist()
        return [a and b for a, b in zip(super().sound(rest), fits, strict=True)]

    def add_to(self, total: Sums, good: Sequence[bool]) -> None:
        """Add up the good answers."""
        super().add_to(total, good)
        how = cast(Mean, total.form.how[self.weight])
        own = [weight(more.scalars, how) for more in self.extras]
        each = [w if ok else 0.0 for w, ok in zip(own, good, strict=True)]
        numbers = self.span.summed(torch.tensor(each, dtype=torch.float64))
        total.add_sum(self.weight, numbers, [w for w, ok in zip(own, good, strict=True) if ok])

    def nbytes(self) -> list[int]:
        """Return how large each answer is."""
        whole = self.span.weight
        return [n + whole.numel() * whole.element_size() for n in super().nbytes()]
