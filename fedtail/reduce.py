"""What a method is sent in place of a list of updates, and how an exchange comes to it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from fedtail.errors import FedtailError
from fedtail.forms import CLASSES, LARGEST, SMALL_TENSOR, ByClass, First, Form, Mean
from fedtail.protocol import ClientId, Payload, Scalar, Task, Tensors, Update
from fedtail.sums import Frame, Frames, bounded, narrow, wide
from fedtail.totals import SAMPLES_NAME, Key, Sums, SumsHeader, Totals

SPARE = 2.0**12
"""A weight that is not the number of samples may be so many times as large."""


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
    totals: Totals
    each: tuple[Update, ...] = ()

    def __getitem__(self, group: str | tuple[str, Scalar]) -> dict[str, Tensor]:
        """Return a group, added up as its form says; nothing if nobody weighs anything.

        Of a group that is added up ``within`` a scalar, ``found[group, value]`` is one part. A
        group with rows by class has the classes that somebody sent, ascending, as ``classes``.
        """
        name, part = group if isinstance(group, tuple) else (group, None)
        form, prefix = self.totals.form, f"{name}/"
        names = [n for n in form.tensors if n.startswith(prefix)]
        if name in form.rows:
            return self._table(name, names)
        found = {n.removeprefix(prefix): self.totals.value((n, part)) for n in names}
        return {n: t for n, t in found.items() if t is not None}

    def count(self, group: str, part: Scalar) -> int:
        """Return how many updates a part of a group was added up of."""
        keys = (k for k in self.totals.seen() if k[0].startswith(f"{group}/") and k[1] == part)
        return max(map(self.totals.count, keys), default=0)

    def weighed(self, weights: Sequence[float]) -> Reduced:
        """Return the same updates, which must be there one by one, with other weights."""
        updates = [
            Update(u.client, replace(u.payload, scalars={**u.payload.scalars, SAMPLES_NAME: w}))
            for u, w in zip(self.each, weights, strict=True)
        ]
        return reduced(updates, self.totals.form)

    def total(self, scalar: str) -> float:
        """Return the sum of a scalar over the updates."""
        return float(self.totals.scalar(scalar))

    def mean(self, scalar: str) -> float:
        """Return the plain mean of a scalar over the updates."""
        return float(self.totals.scalar(scalar) / max(1, len(self.clients)))

    def _table(self, group: str, names: Sequence[str]) -> dict[str, Tensor]:
        seen = sorted({int(c) for n, c in self.totals.seen() if n in names and c is not None})
        table = {CLASSES: torch.tensor(seen, dtype=torch.int64)}
        for name in names:
            look = self.totals.form.tensors[name]
            rows = [self.totals.value((name, c)) for c in seen]
            filled = [r for r in rows if r is not None]
            none = torch.zeros(0, *look.shape, dtype=look.dtype)
            table[name.removeprefix(f"{group}/")] = torch.stack(filled) if filled else none
        return table


class Declaring(Protocol):
    """Whom a plan asks what is to come: an engine."""

    def form(self, task: Task) -> Form:
        """Return what the method declares that clients answer to a task."""

    def announced(self, client: ClientId) -> int | None:
        """Return how many samples a client said at the start that it has; none if it did not."""


@dataclass(frozen=True)
class ExchangePlan:
    """How the answers to the tasks of one exchange are added up.

    Attributes
    ----------
    forms
        What is declared for each task, by its action and the identity of its payload, with the
        bounds that the frames have room for.
    form
        All of them as one.
    frames
        How tensors become whole numbers.
    single
        Whether the updates themselves are needed, too.
    """

    forms: Mapping[tuple[str, int], Form]
    form: Form
    frames: Frames
    single: bool = False

    @classmethod
    def of(cls, tasks: Sequence[Task], engine: Declaring, single: bool = False) -> ExchangePlan:
        """Return the plan for some tasks."""
        forms: dict[tuple[str, int], Form] = {}
        for task in tasks:
            key = task.action, id(task.payload)
            if key not in forms:
                forms[key] = engine.form(task)
        form = union(list(forms.values()))
        most = max((engine.announced(task.client) or 1 for task in tasks), default=1)
        frames = frames_for(form, tasks, most)
        bounded = {key: within_frames(f, frames) for key, f in forms.items()}
        return cls(bounded, form, frames, single or bool(form.why))

    def of_task(self, task: Task) -> Form:
        """Return what is declared for one of the tasks."""
        return self.forms[task.action, id(task.payload)]


def reduced(updates: Iterable[Update], form: Form, single: bool = False) -> Reduced:
    """Return updates, added up one after the other; the updates too, if they are needed."""
    sums, each, clients = Sums(form), [], []
    for update in updates:
        sums.add(update)
        clients.append(update.client)
        if single or form.why:
            each.append(update)
    each.sort(key=lambda update: update.client)
    return Reduced(tuple(sorted(clients)), sums, tuple(each))


def frames_for(form: Form, tasks: Sequence[Task], samples: float) -> Frames:
    """Return how the tensors of an exchange become whole numbers.

    Parameters
    ----------
    form
        What clients answer.
    tasks
        What they were sent, and so how many answers there can be.
    samples
        How many samples the largest of them has.
    """
    sent: Tensors = tasks[0].payload.tensors if tasks else {}
    means = {n: how for n, how in form.how.items() if isinstance(how, Mean)}
    weight = max(1.0, samples) * (
        SPARE if {how.by for how in means.values()} - {"", SAMPLES_NAME} else 1
    )
    # One integer for what was sent under the same name; small ones have room for any number: three.
    large = [n for n in means if n in sent and sent[n].numel() >= SMALL_TENSOR]
    named: dict[str, Frame] = {}
    for name in (n for n in large if sent[n].is_floating_point()):
        most = max(-form.tensors[name].low, form.tensors[name].high)
        known = most < LARGEST  # of clipped changes, which are not like what was sent
        named[name] = (
            bounded(most, len(tasks), weight) if known else narrow(sent[name], len(tasks), weight)
        )
    return Frames(named, wide(len(tasks), weight), weight)


def within_frames(form: Form, frames: Frames) -> Form:
    """Return the form with the bounds that the frames have room for."""
    looks = {
        name: form.tensors[name]._replace(low=-frame.bound, high=frame.bound)
        for name, frame in frames.named.items()
        if name in form.tensors
    }
    weights = {how.by for how in form.how.values() if isinstance(how, Mean)} & form.scalars.keys()
    numbers = {
        name: form.scalars[name]._replace(high=min(form.scalars[name].high, frames.weight))
        for name in weights
    }
    return replace(form, tensors={**form.tensors, **looks}, scalars={**form.scalars, **numbers})


def union(forms: Sequence[Form]) -> Form:
    """Return one form for all actions of an exchange."""
    whole = Form()
    for form in forms:
        whole = Form(
            {**whole.tensors, **form.tensors},
            {**whole.how, **form.how},
            {**whole.scalars, **form.scalars},
            whole.why or form.why,
            form.noisy if form.why else whole.noisy,
        )
    return whole


def received(payload: Payload, form: Form, frames: Frames, most: int, announced: float) -> Sums:
    """Return the sums of a node's clients, held against what was declared.

    Parameters
    ----------
    payload
        What the node sent.
    form, frames
        What is declared, and how it is added up.
    most
        How many updates there can be in it.
    announced
        How many samples its clients said at the start that they have.
    """
    try:
        head = SumsHeader.of(json.loads(str(payload.scalars["sums"])))
        whole = [payload.tensors[str(number)] for number in range(len(payload.tensors))]
        sums = Sums(form, frames)
        sums.take(head, whole)
    except (KeyError, ValueError, TypeError, IndexError, RuntimeError, ZeroDivisionError) as error:
        raise FedtailError(f"sent a sum that cannot be read ({type(error).__name__})") from None
    reason = _bad_sums(sums, most, announced)
    if reason:
        raise FedtailError(f"sent a sum {reason}")
    return sums


def _bad_sums(sums: Sums, most: int, announced: float) -> str:
    """Return what no honest sum of so many updates and samples would have, in a clause."""
    for name, number in sums.form.scalars.items():
        high = announced if number.counted else number.high * most
        if not min(0.0, number.low * most) <= sums.scalar(name) <= high:
            return f"with {name} = {float(sums.scalar(name)):g}"
    found = (_bad_pile(sums, key, most, announced) for key in sums.seen())
    return next((reason for reason in found if reason), "")


def _bad_pile(sums: Sums, key: Key, most: int, announced: float) -> str:
    (name, part), pile = key, sums.piles[key]
    look, how, frame = sums.form.tensors[name], sums.form.how[name], sums.frames.of(name)
    if isinstance(how, ByClass) and not (isinstance(part, int) and 0 <= part < how.classes):
        return f"of {name} for class {part}"
    summed = look.dtype.is_floating_point and not isinstance(how, First)
    kinds = {(tuple(t.shape), t.dtype) for t in pile.whole}
    expected = {(look.shape, torch.int64 if summed else look.dtype)}
    if kinds != expected or len(pile.whole) != (len(frame.shifts) if summed else 1):
        return f"of {name} in another form"
    by_samples = isinstance(how, Mean) and how.by == SAMPLES_NAME
    heaviest = announced if by_samples else most * sums.frames.weight
    if not 0 < pile.count <= most or not 0 <= pile.weight <= max(heaviest, most):
        return f"of {name} with a weight of {float(pile.weight):g}"
    if not pile.whole[0].numel():
        return ""
    if summed:
        found = float(sums.total(key).abs().max())
        bound = min(frame.bound, look.high) * float(pile.weight if isinstance(how, Mean) else most)
    else:
        found = float(pile.whole[0].sum() if look.counted else pile.whole[0].abs().max())
        bound = announced if look.counted else look.high * most
    return "" if found <= bound else f"of {name} with numbers above {bound:g}"
