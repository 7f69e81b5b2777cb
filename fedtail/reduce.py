"""Updates, added up as their form says: what a method is sent in place of a list of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Protocol

import torch
from torch import Tensor

from fedtail.forms import CLASSES, ByClass, First, Form, Mean, Total
from fedtail.protocol import ClientId, Payload, Scalar, Task, Tensors, Update
from fedtail.sums import Frame, add, narrow, opened, wide, zeros

SAMPLES = "samples"
LARGE = 4096
"""Tensors with fewer numbers (biases, statistics) have room for any: three integers each."""
Part = Scalar | None


@dataclass
class Pile:
    """The sum of one tensor, over all updates or over those of one part, or of one class.

    Attributes
    ----------
    weight
        The sum of the weights, exactly.
    whole
        The sum, as integers (`fedtail.sums`); of whole numbers the largest, or their sum.
    count
        How many numbers were added.
    """

    weight: Fraction
    whole: list[Tensor]
    count: int = 0


Key = tuple[str, Part]  # a tensor's flat name, and the part or the class


@dataclass
class Sums:
    """Adds up updates of one form, one after the other, in any order.

    Attributes
    ----------
    frames
        How the numbers of each tensor become whole ones; the wide frame for those not named.
    """

    form: Form
    frames: Mapping[str, Frame] = field(default_factory=dict)
    piles: dict[Key, Pile] = field(default_factory=dict)
    scalars: dict[str, Fraction] = field(default_factory=dict)
    lowest: dict[Key, tuple[ClientId, Tensor]] = field(default_factory=dict)

    def add(self, update: Update) -> None:
        """Add one update."""
        payload = update.payload
        for name, value in payload.scalars.items():
            if not isinstance(value, str):
                self.scalars[name] = self.scalars.get(name, Fraction(0)) + Fraction(value)
        for name, tensor in payload.tensors.items():
            how = self.form.how.get(name)
            match how:
                case ByClass():
                    index = payload.tensors[f"{name.partition('/')[0]}/{CLASSES}"]
                    for c, row in zip(index.tolist(), tensor, strict=True):
                        self._put((name, c), row, 1.0)
                case First():
                    key = name, payload.scalars.get(how.within)
                    if key not in self.lowest or update.client < self.lowest[key][0]:
                        self.lowest[key] = update.client, tensor
                case Mean():
                    self._put((name, payload.scalars.get(how.within)), tensor, weight(payload, how))
                case Total():
                    self._put((name, None), tensor, 1.0)

    def _put(self, key: Key, tensor: Tensor, weight: float) -> None:
        frame, real = self.frame(key[0]), tensor.is_floating_point()
        if key not in self.piles:
            empty = zeros(tensor.shape, frame) if real else [torch.zeros_like(tensor)]
            self.piles[key] = Pile(Fraction(0), empty)
        pile = self.piles[key]
        pile.weight += Fraction(weight)
        pile.count += 1
        if real:
            add(pile.whole, tensor, weight, frame)
        elif isinstance(self.form.how[key[0]], Total):
            pile.whole[0] += tensor
        else:  # the step counters of BatchNorm have no mean
            pile.whole[0] = torch.maximum(pile.whole[0], tensor)

    def frame(self, name: str) -> Frame:
        """Return how the numbers of a tensor become whole ones."""
        return self.frames.get(name, WIDE)

    def value(self, key: Key) -> Tensor | None:
        """Return what a pile comes to; nothing if nobody weighs anything."""
        name = key[0]
        if key in self.lowest:
            return self.lowest[key][1]
        pile = self.piles.get(key)
        if pile is None or not pile.weight:
            return None
        dtype = self.form.tensors[name].dtype
        if not dtype.is_floating_point:
            return pile.whole[0]
        total = opened(pile.whole, self.frame(name))
        summed = isinstance(self.form.how[name], Total)
        return (total if summed else total / float(pile.weight)).to(dtype)


@dataclass(frozen=True)
class Reduced:
    """What an exchange brought.

    Attributes
    ----------
    clients
        Whose updates are in it, ascending; a client with two tasks stands there twice.
    each
        The updates themselves, sorted by client, if the form says that the server needs them.
    """

    clients: tuple[ClientId, ...]
    sums: Sums
    each: tuple[Update, ...] = ()

    def __getitem__(self, group: str | tuple[str, Scalar]) -> dict[str, Tensor]:
        """Return a group, added up as its form says; nothing if nobody weighs anything.

        Of a group that is added up ``within`` a scalar, ``found[group, value]`` is one part. A
        group with rows by class has the classes that somebody sent, ascending, as ``classes``.
        """
        name, part = group if isinstance(group, tuple) else (group, None)
        form, prefix = self.sums.form, f"{name}/"
        names = [n for n in form.tensors if n.startswith(prefix)]
        if name in form.rows:
            return self._table(name, names)
        found = {n.removeprefix(prefix): self.sums.value((n, part)) for n in names}
        return {n: t for n, t in found.items() if t is not None}

    def count(self, group: str, part: Scalar) -> int:
        """Return how many updates a part of a group was added up of."""
        piles = ((name, of, pile) for (name, of), pile in self.sums.piles.items())
        counts = (p.count for name, of, p in piles if name.startswith(f"{group}/") and of == part)
        return max(counts, default=0)

    def weighed(self, weights: Sequence[float]) -> Reduced:
        """Return the same updates, which must be there one by one, with other weights."""
        updates = [
            Update(u.client, replace(u.payload, scalars={**u.payload.scalars, SAMPLES: w}))
            for u, w in zip(self.each, weights, strict=True)
        ]
        return reduced(updates, self.sums.form, self.sums.frames)

    def total(self, scalar: str) -> float:
        """Return the sum of a scalar over the updates."""
        return float(self.sums.scalars.get(scalar, 0))

    def mean(self, scalar: str) -> float:
        """Return the plain mean of a scalar over the updates."""
        return float(self.sums.scalars.get(scalar, Fraction(0)) / max(1, len(self.clients)))

    def _table(self, group: str, names: Sequence[str]) -> dict[str, Tensor]:
        seen = sorted({int(c) for n, c in self.sums.piles if n in names and c is not None})
        table = {CLASSES: torch.tensor(seen, dtype=torch.int64)}
        for name in names:
            look = self.sums.form.tensors[name]
            rows = [self.sums.value((name, c)) for c in seen]
            filled = [r for r in rows if r is not None]
            none = torch.zeros(0, *look.shape, dtype=look.dtype)
            table[name.removeprefix(f"{group}/")] = torch.stack(filled) if filled else none
        return table


class Federation(Protocol):
    """Whom a plan asks what is to come: an engine."""

    def form(self, task: Task) -> Form:
        """Return what the method declares that clients answer to a task."""

    def announced(self, client: ClientId) -> int | None:
        """Return how many samples a client said at the start that it has; none if it did not."""


@dataclass(frozen=True)
class Plan:
    """How the answers to the tasks of one exchange are added up.

    Attributes
    ----------
    forms
        What is declared for each task, by its action and the identity of its payload, with the
        bounds that the frames have room for.
    form
        All of them as one.
    frames
        How large tensors become whole numbers.
    """

    forms: Mapping[tuple[str, int], Form]
    form: Form
    frames: Mapping[str, Frame]

    @classmethod
    def of(cls, tasks: Sequence[Task], federation: Federation) -> Plan:
        """Return the plan for some tasks."""
        forms: dict[tuple[str, int], Form] = {}
        for task in tasks:
            key = task.action, id(task.payload)
            if key not in forms:
                forms[key] = federation.form(task)
        form = union(list(forms.values()))
        most = max((federation.announced(task.client) or 1 for task in tasks), default=1)
        frames = frames_for(form, tasks, most)
        return cls({key: within_frames(f, frames) for key, f in forms.items()}, form, frames)

    def of_task(self, task: Task) -> Form:
        """Return what is declared for one of the tasks."""
        return self.forms[task.action, id(task.payload)]

    def reduced(self, updates: Iterable[Update], single: bool = False) -> Reduced:
        """Return updates, added up one after the other; the updates too, if they are needed."""
        return reduced(updates, self.form, self.frames, single)


def reduced(
    updates: Iterable[Update],
    form: Form,
    frames: Mapping[str, Frame] | None = None,
    single: bool = False,
) -> Reduced:
    """Return updates, added up one after the other; the updates too, if they are needed."""
    sums, each, clients = Sums(form, frames or {}), [], []
    for update in updates:
        sums.add(update)
        clients.append(update.client)
        if single or form.why:
            each.append(update)
    each.sort(key=lambda update: update.client)
    return Reduced(tuple(sorted(clients)), sums, tuple(each))


def frames_for(form: Form, tasks: Sequence[Task], most: float) -> dict[str, Frame]:
    """Return the frames of the tensors that clients were sent under the same name.

    Parameters
    ----------
    form
        What clients answer.
    tasks
        What they were sent, and so how many answers there can be.
    most
        The largest weight of one client.
    """
    sent: Tensors = tasks[0].payload.tensors if tasks else {}
    large = [n for n in form.how if n in sent and sent[n].numel() >= LARGE]
    return {
        name: narrow(sent[name], len(tasks), most)
        for name in large
        if isinstance(form.how[name], Mean) and sent[name].is_floating_point()
    }


def within_frames(form: Form, frames: Mapping[str, Frame]) -> Form:
    """Return the form with the bounds that the frames have room for."""
    looks = {
        name: form.tensors[name]._replace(low=-frame.bound, high=frame.bound)
        for name, frame in frames.items()
        if name in form.tensors
    }
    return replace(form, tensors={**form.tensors, **looks})


def union(forms: Sequence[Form]) -> Form:
    """Return one form for all actions of an exchange."""
    whole = Form()
    for form in forms:
        whole = Form(
            {**whole.tensors, **form.tensors},
            {**whole.how, **form.how},
            {**whole.scalars, **form.scalars},
            whole.why or form.why,
        )
    return whole


def weight(payload: Payload, how: Mean) -> float:
    """Return p_k, up to a factor; who sends no such number weighs 1."""
    value = float(payload.scalars.get(how.by or SAMPLES, 1))
    return value if how.by else float(value > 0)


WIDE = wide()
