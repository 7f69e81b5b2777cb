"""Sums of updates as they grow: what one process adds up, hands over and takes over."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from fedtail.forms import CLASSES, SMALL_TENSOR, ByClass, First, Form, How, Mean, Total
from fedtail.protocol import ClientId, Payload, Scalar, Update
from fedtail.sums import Frame, Frames, add, add_stack, opened, wide, zeros

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
        self._stacked(updates.clients, updates.tensors, scalars)

    def _spread(self, update: Update) -> None:
        """Add the tensors of one update."""
        payload, how = update.payload, self.form.how
        ragged = [name for name in payload.tensors if isinstance(how.get(name), ByClass)]
        alike = {n: t[None] for n, t in payload.tensors.items() if n not in ragged}
        self._stacked([update.client], alike, [payload.scalars])
        for name in ragged:
            index = payload.tensors[f"{name.partition('/')[0]}/{CLASSES}"]
            rows = zip(index.tolist(), payload.tensors[name][:, None], strict=True)
            self._put({(name, c): row for c, row in rows}, [1.0])

    def _stacked(
        self,
        clients: Sequence[ClientId],
        tensors: Mapping[str, Tensor],
        scalars: Sequence[Mapping[str, Scalar]],
    ) -> None:
        """Add tensors with a dimension of clients in front; what is not declared is left out."""
        kinds: dict[How | None, dict[str, Tensor]] = {}
        for name, stack in tensors.items():
            kinds.setdefault(self.form.how.get(name), {})[name] = stack
        for how, stacks in kinds.items():
            within = how.within if isinstance(how, Mean | First) else ""
            parts: dict[Part, list[int]] = {}
            for row, told in enumerate(scalars):
                parts.setdefault(told.get(within), []).append(row)
            for part, rows in parts.items():
                some = {(n, part): s if len(parts) == 1 else s[rows] for n, s in stacks.items()}
                match how:
                    case First():
                        least = min(range(len(rows)), key=lambda at: clients[rows[at]])
                        for key, stack in some.items():
                            first = Pile([stack[least].clone()], clients[rows[least]], len(rows))
                            self._join(key, first)
                    case Mean():
                        self._put(some, [weight(scalars[row], how) for row in rows])
                    case Total():
                        self._put(some, [1.0] * len(rows))

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

    def _put(self, stacks: Mapping[Key, Tensor], weights: Sequence[float]) -> None:
        """Add stacks of the same clients: large ones one by one, small ones side by side."""
        heavy, each = sum(map(exact, weights)), torch.tensor(weights, dtype=torch.float64)
        small: dict[Frame | torch.dtype, list[Key]] = {}
        for key, stack in stacks.items():
            real, frame = stack.is_floating_point(), self.frames.of(key[0])
            if real and stack.shape[1:].numel() >= SMALL_TENSOR:
                add_stack(self._pile(key, stack.shape[1:]).whole, stack, each, frame)
                self._weigh(key, heavy, len(weights))
            else:
                small.setdefault(frame if real else stack.dtype, []).append(key)
        for kind, keys in small.items():
            shapes = [stacks[key].shape[1:] for key in keys]
            sizes = [shape.numel() for shape in shapes]
            flat = [stacks[k].reshape(len(weights), n) for k, n in zip(keys, sizes, strict=True)]
            joint = torch.cat(flat, dim=1)
            if isinstance(kind, Frame):
                total = zeros(joint.shape[1:], kind)
                add_stack(total, joint, each, kind)
            elif summed(self.form.how[keys[0][0]]):
                total = [joint.sum(dim=0, dtype=kind)]
            else:
                total = [joint.amax(dim=0)]
            wholes = zip(*(torch.split(part, sizes) for part in total), strict=True)
            for key, shape, whole in zip(keys, shapes, wholes, strict=True):
                pile = Pile([part.view(shape) for part in whole], heavy, len(weights))
                self._join(key, pile)

    def _pile(self, key: Key, shape: Sequence[int]) -> Pile:
        if key not in self.piles:
            self.piles[key] = Pile(zeros(shape, self.frames.of(key[0])))
        return self.piles[key]

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
