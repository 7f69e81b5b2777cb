"""Exact sums over clients: whole numbers, so that no order of addition changes a bit.

A number x becomes rint(x·2^f), and 64-bit integers are added. What a sum is then depends neither
on who answered first nor on how clients were shared out to workers or nodes, and a part of a sum
can be handed over as a sum. The one rounding is the same on every processor.

Where the size of the numbers is known (a model, from the one that was sent) one integer holds them.
Where it is not (gradients, moments) three hold all of 2^40, times a weight, to 2^-80 and less: the
first is the number in multiples of 2^-f, the second what that leaves in multiples of 2^-(f+42) for
a million addends, and so on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtail.forms import LARGEST

SUM_BITS = 62
"""No sum exceeds 2^62: an integer has 63 bits and a sign."""
PIECE = 1 << 16
"""How many numbers are added at a time: as many as a processor's cache holds."""
MARGIN = 16
"""A model's numbers may be 2^16 times those of the model that was sent."""


class Frame(NamedTuple):
    """How numbers become whole ones.

    Attributes
    ----------
    shifts
        f of each integer, ascending.
    bound
        The largest number, before it is weighted, that there is room for.
    """

    shifts: tuple[int, ...]
    bound: float


class Frames(NamedTuple):
    """How each tensor of an exchange becomes whole numbers.

    Attributes
    ----------
    named
        Of those whose size is known.
    other
        Of the rest.
    weight
        The largest weight of one client that there is room for.
    """

    named: Mapping[str, Frame]
    other: Frame
    weight: float

    def of(self, name: str) -> Frame:
        """Return the frame of one tensor."""
        return self.named.get(name, self.other)

    def plain(self) -> list[Any]:
        """Return it as JSON values."""
        return [{n: [*frame] for n, frame in self.named.items()}, [*self.other], self.weight]

    @classmethod
    def read(cls, plain: Sequence[Any]) -> Frames:
        """Return what `plain` was made from."""
        named, other, weight = plain
        frames = {n: Frame(tuple(shifts), bound) for n, (shifts, bound) in named.items()}
        return cls(frames, Frame(tuple(other[0]), other[1]), weight)


def wide(addends: int, weight: float) -> Frame:
    """Return the frame of weighted numbers whose size nobody knows, up to `LARGEST`.

    Parameters
    ----------
    addends
        How many there can be.
    weight
        The largest weight.
    """
    step = SUM_BITS - _bits(addends)
    first = step - _bits(LARGEST) - _bits(weight)
    return Frame((first, first + step, first + 2 * step), LARGEST)


def narrow(sent: Tensor, addends: int, weight: float) -> Frame:
    """Return the frame of weighted numbers like those sent under the same name."""
    low, high = torch.aminmax(sent) if sent.numel() else (torch.zeros(()),) * 2
    return bounded(2.0 ** (MARGIN + _bits(max(-float(low), float(high)))), addends, weight)


def bounded(bound: float, addends: int, weight: float) -> Frame:
    """Return the frame of weighted numbers of a known size."""
    bits = math.ceil(math.log2(bound))
    return Frame((SUM_BITS - bits - _bits(addends) - _bits(weight),), bound)


def _bits(largest: float) -> int:
    return math.ceil(math.log2(max(1.0, largest)))


def zeros(shape: Sequence[int], frame: Frame) -> list[Tensor]:
    """Return an empty sum."""
    return [torch.zeros(tuple(shape), dtype=torch.int64) for _ in frame.shifts]


def add(total: Sequence[Tensor], numbers: Tensor, weight: float, frame: Frame) -> None:
    """Add w·x to a sum, in place and piece by piece: nothing as large as x is made on the way."""
    add_stack(total, numbers[None], torch.tensor([weight], dtype=torch.float64), frame)


def add_stack(total: Sequence[Tensor], numbers: Tensor, weights: Tensor, frame: Frame) -> None:
    """Add w_k·x_k of many clients k to a sum, in place: the bits of adding one after the other.

    Parameters
    ----------
    total
        The integers of the sum.
    numbers
        x, with a dimension of clients in front.
    weights
        w of each client, in float64.
    frame
        How numbers become whole ones.
    """
    flat = numbers.detach().to("cpu").reshape(len(weights), -1)
    columns = max(1, PIECE // len(weights))
    # NumPy, because a call takes half as long as one of torch. To multiply by a power of two is
    # exact, and so is the difference, which cancels the leading bits.
    places = [part.view(-1).numpy() for part in total]
    factor = weights[:, None].numpy() * 2.0 ** frame.shifts[0]
    steps = [2.0 ** (b - a) for a, b in pairwise(frame.shifts)]
    for start in range(0, flat.shape[1], columns):
        piece = slice(start, start + columns)
        rest = flat[:, piece].to(torch.float64, copy=True).numpy()
        rest *= factor
        for place, step in zip(places, (*steps, None), strict=True):
            whole = np.rint(rest, out=rest if step is None else None)
            integers = whole.astype(np.int64)
            place[piece] += integers[0] if len(integers) == 1 else integers.sum(0)
            if step is not None:
                rest -= whole
                rest *= step


def opened(parts: Sequence[Tensor], frame: Frame) -> Tensor:
    """Return a sum of addends as a number, in float64."""
    pieces = [
        part.to(torch.float64).mul_(2.0**-shift)
        for part, shift in zip(parts, frame.shifts, strict=True)
    ]
    total = pieces[-1]  # small before large: the least is lost
    for piece in reversed(pieces[:-1]):
        total += piece
    return total
