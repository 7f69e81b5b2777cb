"""Sums of updates as they grow: what one process adds up, hands over and takes over."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from fedtail.forms import CLASSES, ByClass, First, Form, How, Mean, Total
from fedtail.protocol import ClientId, Payload, Scalar, Update
from fedtail.sums import Frames, add, add_stack, opened, wide, zeros

SAMPLES_NAME = "samples"
ANY = Frames({}, wide(1 << 20, 2.0**20), 2.0**20)
"""Room for a million updates of up to a million samples, where nobody knows better."""
Part = Scalar | None
Key = tuple[str, Part]  # a tensor's flat name, and the part or the class
Exact = Fraction | int
"""A sum without rounding; of whole numbers a whole number, which is added up faster."""


@dataclass
class Pile:
    """The sum of one tensor, over all updates or over those of one part, or of one class.

    Attributes
    ----------
    whole
        The sum, as integers (`fedtail.sums`); of whole numbers the largest, or their sum; of
        `First`, the tensor of the lowest client.
    weight
        The sum of the weights, exactly; of `First`, the lowest client.
    count
        How many numbers were added.
    value
        What it came to, once somebody asked; the integers, which are larger, are gone then.
    """

    whole: list[Tensor]
    weight: Exact = 0
    count: int = 0
    value: Tensor | None = None


class Totals(Protocol):
    """What an exchange came to, tensor by tensor."""

    form: Form

    def value(self, key: Key) -> Tensor | None:
        """Return what a tensor comes to; nothing if nobody weighs anything."""

    def seen(self) -> Iterable[Key]:
        """Return the tensors, and the parts or classes of each, that somebody sent."""

    def count(self, key: Key) -> int:
        """Return how many updates are in it."""

    def scalar(self, name: str) -> Exact:
        """Return the sum of a scalar."""


class StackedUpdates(NamedTuple):
    """Updates of many clients.

    Attributes
    ----------
    clients
        Whose they are.
    tensors
        By their flat names, with a dimension of clients in front; none with rows by class.
    extras
        What else each client sends: all scalars, and tensors that are not alike.
    """

    clients: Sequence[ClientId]
    tensors: Mapping[str, Tensor]
    extras: Sequence[Payload]


@dataclass
class Sums:
    """Adds up updates of one form, one after the other, in any order.

    Attributes
    ----------
    frames
        How the numbers of each tensor become whole ones.
    """

    form: Form
    frames: Frames = ANY
    piles: dict[Key, Pile] = field(default_factory=dict)
    scalars: dict[str, Exact] = field(default_factory=dict)

    def add(self, update: Update) -> None:
        """Add one update."""
        self._count([update.payload.scalars])
        self._spread(update)

    def add_stack(self, updates: StackedUpdates) -> None:
        """Add the updates of many clients: the bits of adding one after the other."""
        scalars = [more.scalars for more in updates.extras]
        self._count(scalars)
        for client, more in zip(updates.clients, updates.extras, strict=True):
            if more.tensors:
                self._spread(Update(client, more))
        for name, stack in updates.tensors.items():
            how = self.form.how.get(name)
            within = how.within if isinstance(how, Mean | First) else ""
            parts: dict[Part, list[int]] = {}
            for row, told in enumerate(scalars):
                parts.setdefault(told.get(within), []).append(row)
            for part, rows in parts.items():
                some = stack if len(parts) == 1 else stack[rows]
                match how:
                    case First():
                        row = min(rows, key=lambda row: updates.clients[row])
                        first = Pile([stack[row].clone()], updates.clients[row], len(rows))
                        self._join((name, part), first)
                    case Mean():
                        weights = [weight(scalars[row], how) for row in rows]
                        self._put_stack((name, part), some, weights)
                    case Total():
                        self._put_stack((name, None), some, [1.0] * len(rows))

    def add_sum(self, name: str, numbers: Tensor, weights: Sequence[float]) -> None:
        """Add Σ w_k·x_k of a tensor, which somebody else added up, in float64."""
        key = name, None
        add(self._pile(key, numbers.shape).whole, numbers, 1.0, self.frames.of(name))
        self._weigh(key, sum(map(exact, weights)), len(weights))

    def _count(self, scalars: Sequence[Mapping[str, Scalar]]) -> None:
        """Add scalars of updates, each update's own."""
        for name in dict.fromkeys(name for told in scalars for name in told):
            values = [told[name] for told in scalars if name in told]
            if all(isinstance(value, int) for value in values):
                self.scalars[name] = self.scalar(name) + sum(cast(list[int], values))
            else:
                numbers = (exact(v) for v in values if not isinstance(v, str))
                self.scalars[name] = sum(numbers, start=self.scalar(name))

    def _spread(self, update: Update) -> None:
        """Add the tensors of one update."""
        payload = update.payload
        for name, tensor in payload.tensors.items():
            match how := self.form.how.get(name):
                case ByClass():
                    index = payload.tensors[f"{name.partition('/')[0]}/{CLASSES}"]
                    for c, row in zip(index.tolist(), tensor, strict=True):
                        self._put((name, c), row, 1.0)
                case First():
                    key = name, payload.scalars.get(how.within)
                    self._join(key, Pile([tensor], update.client, 1))
                case Mean():
                    self._put(
                        (name, payload.scalars.get(how.within)),
                        tensor,
                        weight(payload.scalars, how),
                    )
                case Total():
                    self._put((name, None), tensor, 1.0)

    def _put(self, key: Key, tensor: Tensor, weight: float) -> None:
        if not tensor.is_floating_point():
            self._join(key, Pile([tensor], exact(weight), 1))
            return
        add(self._pile(key, tensor.shape).whole, tensor, weight, self.frames.of(key[0]))
        self._weigh(key, exact(weight), 1)

    def _pile(self, key: Key, shape: Sequence[int]) -> Pile:
        if key not in self.piles:
            self.piles[key] = Pile(zeros(shape, self.frames.of(key[0])))
        return self.piles[key]

    def _put_stack(self, key: Key, stack: Tensor, weights: Sequence[float]) -> None:
        heavy = sum(map(exact, weights))
        if not stack.is_floating_point():
            whole = stack.sum(dim=0) if summed(self.form.how[key[0]]) else stack.amax(dim=0)
            self._join(key, Pile([whole], heavy, len(weights)))
            return
        pile, frame = self._pile(key, stack.shape[1:]), self.frames.of(key[0])
        add_stack(pile.whole, stack, torch.tensor(weights, dtype=torch.float64), frame)
        self._weigh(key, heavy, len(weights))

    def merge(self, other: Sums) -> None:
        """Add what another one has added up, which gives the bits of adding up all here."""
        for key, pile in other.piles.items():
            self._join(key, pile)
        for name, value in other.scalars.items():
            self.scalars[name] = self.scalar(name) + value

    def _join(self, key: Key, pile: Pile) -> None:
        for number, whole in enumerate(pile.whole):
            self.put_part(key, number, whole, pile.weight)
        self._weigh(key, pile.weight, pile.count)

    def put_part(self, key: Key, number: int, whole: Tensor, weight: Exact) -> None:
        """Add one of the integers of a sum, before its weight."""
        how, real = self.form.how[key[0]], self.form.tensors[key[0]].dtype.is_floating_point
        known = self.piles.setdefault(key, Pile([], weight if isinstance(how, First) else 0))
        if number == len(known.whole):
            known.whole.append(whole if isinstance(how, First) else whole.clone())
        elif isinstance(how, First):
            known.whole[number] = whole if weight < known.weight else known.whole[number]
        elif real or summed(how):
            known.whole[number] += whole
        else:  # the step counters of BatchNorm have no mean
            known.whole[number] = torch.maximum(known.whole[number], whole)

    def _weigh(self, key: Key, weight: Exact, count: int) -> None:
        pile = self.piles[key]
        first = isinstance(self.form.how[key[0]], First)
        pile.weight = min(pile.weight, weight) if first else pile.weight + weight
        pile.count += count

    def seen(self) -> Iterable[Key]:
        """Return the tensors, and the parts or classes of each, that somebody sent."""
        return self.piles.keys()

    def count(self, key: Key) -> int:
        """Return how many updates are in it."""
        return self.piles[key].count

    def scalar(self, name: str) -> Exact:
        """Return the sum of a scalar."""
        return self.scalars.get(name, 0)

    def total(self, key: Key) -> Tensor:
        """Return the weighted sum of a tensor of real numbers, in float64."""
        return opened(self.piles[key].whole, self.frames.of(key[0]))

    def value(self, key: Key) -> Tensor | None:
        """Return what a tensor comes to; nothing if nobody weighs anything."""
        how, dtype = self.form.how[key[0]], self.form.tensors[key[0]].dtype
        pile = self.piles.get(key)
        if pile is None or (not pile.weight and not isinstance(how, First)):
            return None
        if isinstance(how, First) or not dtype.is_floating_point:
            return pile.whole[0]
        if pile.value is None:
            total = self.total(key)
            pile.value = (total if summed(how) else total.div_(float(pile.weight))).to(dtype)
            pile.whole.clear()
        return pile.value

    # As messages

    def payload(self) -> Payload:
        """Return it as a message, in which the integers stand one after the other."""
        tensors = {str(number): whole for number, (_, _, whole, _) in enumerate(self.parts())}
        return Payload(tensors, {"sums": json.dumps(self.header().plain())})

    def parts(self) -> Iterator[tuple[Key, int, Tensor, Exact]]:
        """Return the integers of all sums, one by one."""
        for key, pile in self.piles.items():
            for number, whole in enumerate(pile.whole):
                yield key, number, whole, pile.weight

    def header(self) -> SumsHeader:
        """Return all but the integers."""
        piles = [(k, p.weight, p.count, len(p.whole)) for k, p in self.piles.items()]
        return SumsHeader(piles, dict(self.scalars))

    def take(self, head: SumsHeader, integers: Iterable[Tensor], skip: int = 0) -> int:
        """Add a sum that comes piece by piece, and return how many pieces came.

        Parameters
        ----------
        head, integers
            The other sum.
        skip
            How many pieces were added before: of a sum that broke off, and is sent once more.
        """
        places = [(key, weight, n) for key, weight, _, parts in head.piles for n in range(parts)]
        came = 0
        try:
            for (key, weight, number), whole in zip(places, integers, strict=True):
                if came >= skip:
                    self.put_part(key, number, whole, weight)
                came += 1
        except (EOFError, OSError):
            return max(came, skip)
        for key, weight, count, _ in head.piles:
            self._weigh(key, weight, count)
        for name, value in head.scalars.items():
            self.scalars[name] = self.scalar(name) + value
        return came


class SumsHeader(NamedTuple):
    """What a message says of sums, beside their integers: key, weight, count, integers of each."""

    piles: list[tuple[Key, Exact, int, int]]
    scalars: dict[str, Exact]

    def plain(self) -> dict[str, Any]:
        """Return it as JSON values."""
        piles = [[*key, str(weight), count, parts] for key, weight, count, parts in self.piles]
        return {"piles": piles, "scalars": {n: str(value) for n, value in self.scalars.items()}}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> SumsHeader:
        """Return what `plain` was made from."""
        piles: list[tuple[Key, Exact, int, int]] = [
            ((n, c), Fraction(w), int(k), int(p)) for n, c, w, k, p in plain["piles"]
        ]
        return cls(piles, {str(n): Fraction(value) for n, value in plain["scalars"].items()})


def summed(how: How) -> bool:
    """Whether what is added up stays a sum, and is not divided by its weight."""
    return isinstance(how, Total) or (isinstance(how, ByClass) and not how.mean)


def exact(number: float) -> Exact:
    """Return a finite number as one that adds up without rounding."""
    return int(number) if number == int(number) else Fraction(number)


def weight(scalars: Mapping[str, Scalar], how: Mean) -> float:
    """Return p_k, up to a factor; who sends no such number weighs 1."""
    value = float(scalars.get(how.by or SAMPLES_NAME, 1))
    return value if how.by else float(value > 0)
