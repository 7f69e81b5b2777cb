"""The clients' side of protection: what an update becomes before it leaves.

The server's side is `fedtail.privacy.server_side`. Neither knows a method, and no method knows
them.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import cast

import torch

from fedtail.engines.robust import RobustMean, alike
from fedtail.errors import FedtailError
from fedtail.forms import LARGEST, Form, Like, Total
from fedtail.privacy.clipping import CLIP, private_form, private_update
from fedtail.privacy.config import Privacy
from fedtail.privacy.layout import REAL_BITS, length, part_of, slots, vector
from fedtail.privacy.noise import RandomBytes, grid_step, seeded_bytes
from fedtail.privacy.secure.fixed import encoded, layout_digest
from fedtail.privacy.secure.member import ACTIONS, Member, as_signed
from fedtail.protocol import Client, Payload, Scalar, Task

MOST_IN_32 = 1000
"""How many clipped updates have room in sums of 32 bits."""
MASKED = "masked"
"""The group of masked vectors."""


@dataclass
class ClientProtection:
    """Clips updates and masks them, as far as a run asks for it.

    Attributes
    ----------
    member
        The clients' half of secure sums; none for sums in the clear.
    privacy
        What is promised, if anything is.
    sigma
        The noise that a client adds itself; none in the central model.
    robust
        The mean of which clients do their parts themselves, if there is one.
    bits
        w: masked numbers are added up modulo 2^w.
    """

    member: Member | None = None
    privacy: Privacy | None = None
    sigma: float = 0.0
    robust: RobustMean | None = None
    bits: int = 64

    @property
    def actions(self) -> frozenset[str]:
        """What a client can be asked that no method asks."""
        return frozenset() if self.member is None else ACTIONS

    def form(self, declared: Form, sent: Payload) -> Form:
        """Return what leaves a client in place of what a method declares of a task."""
        if declared.why:  # it has noise of its own, or the server's side refuses it
            return declared
        clean = self.privacy is not None and not self.sigma
        clear = self.clear(declared, self.clip(sent) if clean else LARGEST)
        return clear if self.member is None else masked_form(clear, self.bits)

    def clear(self, declared: Form, bound: float = LARGEST) -> Form:
        """Return what is added up in place of what a method declares, under masks or not."""
        if self.privacy is not None:
            return private_form(declared, self.adaptive, bound)
        return declared if self.robust is None else alike(declared)

    def protected(self, answer: Payload, declared: Form, task: Task, client: Client) -> Payload:
        """Return an update as it may leave the client."""
        if declared.why:
            return answer
        real = REAL_BITS
        if self.privacy is not None:
            sent, clip = task.payload, self.clip(task.payload)
            source, real = self.source(client), real_bits(clip)
            answer = private_update(answer, declared, sent, clip, self.sigma, source, self.adaptive)
        elif self.robust is not None:
            answer = self.robust.alone(answer, declared, task.payload.tensors)
        clear = self.clear(declared)
        return answer if self.member is None else masked(answer, clear, task, self.member, real)

    def perform(self, task: Task) -> Payload:
        """Do a step of a secure sum."""
        if self.member is None:
            raise FedtailError("no sum of this run is secure")
        return self.member.perform(task)

    def clip(self, sent: Payload) -> float:
        """Return S of a task."""
        return float(sent.scalars.get(CLIP, cast(Privacy, self.privacy).clip))

    @property
    def adaptive(self) -> bool:
        """Whether clients tell if their update was clipped."""
        return self.privacy is not None and self.privacy.quantile is not None

    def source(self, client: Client) -> RandomBytes:
        """Return where a client's noise comes from."""
        if self.privacy is None or not self.privacy.simulated:
            return os.urandom
        return seeded_bytes(client.seed, f"client/noise/{client.turn}", client.round, client.id)


def masked(answer: Payload, form: Form, task: Task, member: Member, real: int) -> Payload:
    """Return an update as whole numbers under masks.

    Parameters
    ----------
    answer, form
        The update, and how it is added up.
    task
        What it answers, which names the secure sum.
    member
        Who puts the masks on.
    real
        f of real numbers.
    """
    numbers = torch.cat([vector(answer, form, parts) for parts in (False, True)])
    places = [*slots(form, False), *slots(form, True)]
    terms = member.terms(task)
    x = encoded(numbers, places, terms.addends, terms.width, real)
    member.masked(task, layout_digest(form, real), x)
    return Payload({masked_name(part_of(form)): as_signed(x)})


def width(privacy: Privacy, clients: int) -> int:
    """Return w: clipped numbers are at most 2^21 steps of their grid, and 2^10 of them 2^31."""
    return 32 if privacy.on and privacy.model == "central" and clients <= MOST_IN_32 else 64


def real_bits(clip: float) -> int:
    """Return f of clipped numbers, which are whole steps of a grid: nothing is rounded."""
    return round(-math.log2(grid_step(clip)))


def masked_name(part: Scalar | None) -> str:
    """Return the name of the vectors that are added up with each other."""
    return f"{MASKED}/{'update' if part is None else part}"


def masked_form(form: Form, width: int) -> Form:
    """Return what a masked update looks like: whole numbers that anybody may add up."""
    dtype = torch.int32 if width == 32 else torch.int64
    most, size = 2.0 ** (width - 1), length(form, False) + length(form, True)
    name = masked_name(part_of(form))
    return Form({name: Like((size,), dtype, low=-most, high=most)}, {name: Total()})
