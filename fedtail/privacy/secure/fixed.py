"""Numbers as whole ones modulo 2^w, which add up exactly and can be masked.

x becomes rint(x·2^f). With n vectors no sum is out of range if nobody's number is above
2^(w−1−f) / n, so a client that has a larger one does not answer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedtail.forms import Form
from fedtail.privacy.clipping import WITHIN
from fedtail.privacy.layout import REAL_BITS, Slot, slots
from fedtail.privacy.secure.crypto import Numbers, sha256
from fedtail.privacy.secure.terms import Refused


def shift(slot: Slot, real: int = REAL_BITS) -> int:
    """Return f of a slot's numbers; a mark that is ½ or −½ needs one bit."""
    return 0 if slot.whole else 1 if slot.name == WITHIN else real


def layout_digest(form: Form, real: int = REAL_BITS) -> str:
    """Return the digest of what stands where in vectors of a form, and of all f."""
    plain = [[[*slot, shift(slot, real)] for slot in slots(form, parts)] for parts in (False, True)]
    return sha256(json.dumps(plain).encode()).hex()


def encoded(
    numbers: Tensor, places: Sequence[Slot], addends: int, width: int, real: int = REAL_BITS
) -> Numbers:
    """Return numbers as whole ones modulo 2^w.

    Parameters
    ----------
    numbers, places
        The numbers, and what stands where in them.
    addends
        n: how many such vectors are added up at most.
    width, real
        w, and f of real numbers.
    """
    x = numbers.numpy().copy()
    start, most = 0, (2.0 ** (width - 1) - 1) / addends
    for slot in places:
        piece, f = x[start : start + slot.size], shift(slot, real)
        np.rint(np.multiply(piece, 2.0**f, out=piece), out=piece)
        largest = np.abs(piece).max(initial=0.0)
        if not largest <= most:
            raise Refused(
                f"its '{slot.name}' has a number above {most * 2.0**-f:g}, which is what a secure "
                f"sum of {addends} clients has room for"
            )
        start += slot.size
    return x.astype(np.int64).astype(np.uint32 if width == 32 else np.uint64)


def decoded(total: Numbers, places: Sequence[Slot], real: int = REAL_BITS) -> Tensor:
    """Return a sum modulo 2^w as numbers, in float64."""
    signed = total.view(np.int32 if total.itemsize == 4 else np.int64)
    x = torch.from_numpy(signed.astype(np.float64))
    for piece, slot in zip(torch.split(x, [slot.size for slot in places]), places, strict=True):
        piece *= 2.0 ** -shift(slot, real)
    return x
