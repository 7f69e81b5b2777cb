"""What a client may answer: names, types, shapes, row counts and bounds, declared by the method.

Every action of a method has a declaration of the same name, ``<action>_form``. The engine holds
each update against it before anything is added up, so that one client can neither break a round
nor speak for another, and the honest ones are never outvoted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from fedtail.protocol import Payload, Scalar, grouped

ANY_LENGTH = -1
"""In a shape: as long as it is."""
LARGEST = 2.0**40
"""No number of an honest update is larger; what is merely large is for robust means."""
SMALL_TENSOR = 4096
"""A tensor with fewer numbers (a bias, statistics) is small."""
CLASSES = "classes"
"""The index tensor of a group with one row a class."""
ROWS, HELD = "rows", "held"
"""The group of a classifier's changes that are weighed by each class's share in a client's samples,
and these shares."""


class Like(NamedTuple):
    """What one tensor looks like.

    Attributes
    ----------
    shape, dtype
        As they must be; in a group of rows, the shape of one row.
    low, high
        The least and the largest number; with `counted`, no sum is above the client's samples.
    counted
        Whether the numbers count the client's own samples.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    low: float = -LARGEST
    high: float = LARGEST
    counted: bool = False


class Number(NamedTuple):
    """What one scalar looks like: real or whole, from `low` to `high`, or counted (see `Like`)."""

    low: float = -LARGEST
    high: float = LARGEST
    whole: bool = False
    counted: bool = False


class Mean(NamedTuple):
    """Add up as a mean, weighted by a scalar of the update; of whole numbers the largest.

    Attributes
    ----------
    by
        The scalar; empty if all who have samples weigh the same.
    within
        A scalar: only updates with the same value of it are added up. Empty for all.
    """

    by: str = "samples"
    within: str = ""


BY_SAMPLES = Mean()
"""How a group is added up if nothing is said."""


class First(NamedTuple):
    """Take the one of the client with the lowest number, of those with the same `within`."""

    within: str = ""


class Total(NamedTuple):
    """Add up as it is."""


class ByClass(NamedTuple):
    """Rows with an index tensor ``classes`` beside them: of each class the mean over its senders.

    Attributes
    ----------
    classes
        How many classes there are.
    mean
        Whether it is the mean over them, or what they add up to.
    """

    classes: int
    mean: bool = True


How = Mean | First | Total | ByClass

SAMPLES = Number(low=0, whole=True, counted=True)
"""How many samples of its own a client used: at most those it announced at the start."""
COUNT = Number(low=0, whole=True)
"""A number of steps, classes, ..."""


@dataclass(frozen=True)
class Form:
    """What an update holds, exactly these names, and how the server adds it up.

    Attributes
    ----------
    tensors
        By their flat names, ``model/fc.weight``. The index tensor of a group with one row a class,
        ``classes``, is ascending and not declared.
    how
        How each of them is added up.
    scalars
        By their names; they are added up as they are.
    why
        Why the server needs every client's own update and not only sums, in a clause: what a
        private run says when it refuses. Empty if sums are enough.
    noisy
        Whether they carry noise for which a guarantee was computed, so that they may be seen.
    """

    tensors: Mapping[str, Like] = field(default_factory=dict)
    how: Mapping[str, How] = field(default_factory=dict)
    scalars: Mapping[str, Number] = field(default_factory=dict)
    why: str = ""
    noisy: bool = False

    def group(self, name: str, tensors: Mapping[str, Like], how: How = BY_SAMPLES) -> Form:
        """Return the form with one more group."""
        more = grouped(name, tensors)
        return replace(
            self,
            tensors={**self.tensors, **more},
            how={**self.how, **dict.fromkeys(more, how)},
        )

    def numbers(self, **scalars: Number) -> Form:
        """Return the form with more scalars."""
        return replace(self, scalars={**self.scalars, **scalars})

    def without(self, *prefixes: str) -> Form:
        """Return the form without the tensors whose flat names begin so."""
        kept = {n: look for n, look in self.tensors.items() if not n.startswith(prefixes)}
        return replace(self, tensors=kept, how={n: self.how[n] for n in kept})

    @cached_property
    def rows(self) -> dict[str, int]:
        """The groups with one row a class, and how many classes there are."""
        ragged = {n: how.classes for n, how in self.how.items() if isinstance(how, ByClass)}
        return {name.partition("/")[0]: classes for name, classes in ragged.items()}

    def singly(self, why: str, noisy: bool = False) -> Form:
        """Return the form of updates that the server needs one by one."""
        return replace(self, why=why, noisy=noisy)


def renamed(form: Form, new: Mapping[str, str], within: str) -> Form:
    """Return the form with some tensors under new names, added up within a scalar's value."""

    def part(name: str, how: How) -> How:
        if name in new and isinstance(how, Mean | First):
            return how._replace(within=within)
        return how

    return replace(
        form,
        tensors={new.get(n, n): look for n, look in form.tensors.items()},
        how={new.get(n, n): part(n, how) for n, how in form.how.items()},
    )


def like(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Like]:
    """Return the looks of named tensors."""
    return {name: Like(tuple(t.shape), t.dtype) for name, t in tensors}


def defect(payload: Payload, form: Form, announced: int | None, quoted: bool = True) -> str:
    """Return what is wrong with an update, in a clause; nothing if it can be used.

    Parameters
    ----------
    payload
        The update.
    form
        What was declared.
    announced
        How many samples the client said at the start that it has; none if nobody was told.
    quoted
        Whether the clause has the numbers that are wrong, and their limits; where updates are
        protected they are nobody else's business.
    """
    most = LARGEST if announced is None else announced
    return _bad_scalars(payload.scalars, form, most, quoted) or _bad_tensors(
        payload.tensors, form, most, quoted
    )


def as_stacks(
    payloads: Sequence[Payload], form: Form, announced: Sequence[int | None]
) -> dict[str, Tensor] | None:
    """Return the tensors of several updates, with a dimension of clients in front.

    There are none if an update has a defect, or if it takes more than one look at all of them to
    know: where numbers count samples, or there is one row a class.
    """
    if form.rows or not form.tensors:
        return None
    for payload, samples in zip(payloads, announced, strict=True):
        most = LARGEST if samples is None else samples
        unlike = payload.tensors.keys() != form.tensors.keys()
        if unlike or _bad_scalars(payload.scalars, form, most):
            return None
    stacks: dict[str, Tensor] = {}
    for name, look in form.tensors.items():
        each = [payload.tensors[name] for payload in payloads]
        for one in each:
            if one.shape != look.shape or one.dtype != look.dtype or one.layout != torch.strided:
                return None
        stacks[name] = torch.stack(each)
    return stacks if bool(sound(stacks, form.tensors).all()) else None


def sound(tensors: Mapping[str, Tensor], looks: Mapping[str, Like]) -> Tensor:
    """Return whether each client's tensors look as declared, quickly; not of counts or rows.

    Parameters
    ----------
    tensors
        With a dimension of clients in front.
    looks
        What each is for one client.
    """
    good = torch.ones(len(next(iter(tensors.values()))), dtype=torch.bool)
    for name, tensor in tensors.items():
        look = looks[name]
        if tensor.shape[1:] != look.shape or tensor.dtype != look.dtype or look.counted:
            return torch.zeros_like(good)
        if tensor[0].numel() and tensor.dtype != torch.bool:
            # `aminmax` along a dimension takes ten times as long.
            flat = tensor.reshape(len(good), -1)
            good &= (flat.amin(1) >= look.low) & (flat.amax(1) <= look.high)  # NaN if there is one
    return good


def not_finite(payload: Payload) -> str:
    """Return where there is NaN or infinity, in a clause; nothing if there is none."""
    for name, tensor in payload.tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            return f"sent NaN or infinity in {name}"
    return ""


def _bad_scalars(
    scalars: Mapping[str, Scalar], form: Form, most: float, quoted: bool = True
) -> str:
    for name, value in scalars.items():
        if name not in form.scalars:
            return f"sent '{name}', which is not declared"
        found = _bad_scalar(name, value, form.scalars[name], most)
        if found:
            return found if quoted else f"sent a number as {name} that is not what is declared"
    missing = form.scalars.keys() - scalars.keys()
    return _missing(min(missing)) if missing else ""


def _bad_scalar(name: str, value: Scalar, number: Number, most: float) -> str:
    kinds = int if number.whole else int | float
    if isinstance(value, bool) or not isinstance(value, kinds):
        return f"sent {name} = {_short(value)}, not a {'whole ' if number.whole else ''}number"
    if isinstance(value, float) and not math.isfinite(value):
        return f"sent {name} = {value}"
    high = most if number.counted else number.high
    if not number.low <= value <= high:
        return f"sent {name} = {_short(value)}, not from {number.low:g} to {high:g}"
    return ""


def _bad_tensors(tensors: Mapping[str, Tensor], form: Form, most: float, quoted: bool) -> str:
    index = {f"{group}/{CLASSES}": classes for group, classes in form.rows.items()}
    odd = tensors.keys() ^ (form.tensors.keys() | index.keys())
    if odd:
        name = min(odd)
        return f"sent '{name}', which is not declared" if name in tensors else _missing(name)
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided:
            return f"sent {name} as a sparse tensor"
    for name, classes in index.items():
        found = _bad_index(name, tensors[name], classes)
        if found:
            return found
    for name, look in form.tensors.items():
        group = name.partition("/")[0]
        rows = (len(tensors[f"{group}/{CLASSES}"]),) if group in form.rows else ()
        found = _bad_tensor(name, tensors[name], look, (*rows, *look.shape), most, quoted)
        if found:
            return found
    return ""


def _bad_index(name: str, index: Tensor, classes: int) -> str:
    if index.dtype != torch.int64 or index.ndim != 1:
        return f"sent {name} as {_kind(index)}, not a list of class numbers"
    known = not len(index) or (int(index[0]) >= 0 and int(index[-1]) < classes)
    if not known or not bool((index[1:] > index[:-1]).all()):
        return f"sent {name} that are not ascending class numbers below {classes}"
    return ""


def _bad_tensor(
    name: str, tensor: Tensor, look: Like, shape: tuple[int, ...], most: float, quoted: bool
) -> str:
    if tensor.dtype != look.dtype:
        return f"sent {name} as {_kind(tensor)}, not {_word(look.dtype)}"
    if len(tensor.shape) != len(shape) or any(
        n not in (m, ANY_LENGTH) for n, m in zip(shape, tensor.shape, strict=True)
    ):
        return f"sent {name} of shape {tuple(tensor.shape)}, not {shape}"
    if not tensor.numel() or tensor.dtype == torch.bool:
        return ""
    low, high = (float(end) for end in torch.aminmax(tensor))  # NaN if there is one
    if not math.isfinite(low) or not math.isfinite(high):
        return f"sent NaN or infinity in {name}"
    # A sum of counts cannot overflow: each is at most `most` first.
    bound = most if look.counted else look.high
    if low < look.low or high > bound or (look.counted and float(tensor.sum()) > most):
        seen = f"from {low:g} to {high:g}, not {look.low:g} to {bound:g}"
        return f"sent {name} with numbers {seen if quoted else 'out of range'}"
    return ""


def _missing(name: str) -> str:
    return f"did not send '{name}'"


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _kind(tensor: Tensor) -> str:
    return f"{_word(tensor.dtype)} of shape {tuple(tensor.shape)}"


def _short(value: Scalar) -> str:
    if isinstance(value, int) and value.bit_length() > 64:  # Python refuses to print very long ones
        return f"a whole number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
