"""The server's side of protection: it opens sums over clients, and nothing else of their updates.

Clipped updates are added up like any others, and so are masked ones, whose sum the clients open.
Noise is put into the sums before the method sees them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, cast

import torch
from torch import Tensor

from fedtail.engines.base import Dropped, Engine, Replies
from fedtail.engines.runtime import Clock
from fedtail.errors import FedtailError
from fedtail.forms import ByClass, Form, Total
from fedtail.privacy.budget import Budget
from fedtail.privacy.client_side import ClientProtection, real_bits
from fedtail.privacy.clipping import CLIP, WITHIN, restored
from fedtail.privacy.layout import REAL_BITS, Opened, part_of_task, why_no_sum
from fedtail.privacy.noise import RandomBytes, hidden, seeded_bytes
from fedtail.privacy.secure.round import SecureSums
from fedtail.privacy.secure.terms import FEWEST, TOO_FEW, Refused
from fedtail.protocol import Payload, Scalar, Task
from fedtail.reduce import Reduced, union
from fedtail.totals import Key, Part, Sums, summed


@dataclass
class ServerProtection:
    """Shows a method sums over clients.

    Attributes
    ----------
    client
        The clients' side: what it makes of updates is what is added up.
    secure
        The server's half of secure sums; none if updates are not masked.
    budget
        What is spent by showing noisy sums; none without differential privacy.
    seed
        Of the server's noise.
    """

    client: ClientProtection = field(default_factory=ClientProtection)
    secure: SecureSums | None = None
    budget: Budget | None = None
    seed: int = 0
    releases: Counter[int] = field(default_factory=Counter)
    single: ClassVar[bool] = False

    @property
    def apart(self) -> bool:
        """Whether answers come here one by one: nobody answers twice in a secure sum."""
        return self.secure is not None

    def begin(self, tasks: Sequence[Task], engine: Engine, clock: Clock) -> Sequence[Task]:
        """Return the tasks as they are sent; refuse those whose answers cannot be protected."""
        declared = declared_for(tasks, engine)
        for form in declared.values():
            reason = why_no_sum(form)
            if reason:
                raise FedtailError(
                    f"this method cannot be protected: {reason} (it would leave the client in the "
                    "clear)"
                )
        if clock.phase == "after" and tasks and self.budget is not None:
            raise FedtailError(
                "the method asks clients again after training, which the budget of differential "
                "privacy does not cover"
            )
        facts: dict[str, Scalar] = {}
        if self.budget is not None and self.budget.adaptive:
            self.budget.clip = self.budget.next_clip
            facts[CLIP] = self.budget.clip
        tasks = told(tasks, facts) if facts else tasks
        if self.secure is None or any(form.why for form in declared.values()):
            return tasks
        real = REAL_BITS if self.budget is None else real_bits(self.budget.clip)
        return self.secure.begin(tasks, engine, clock, real)

    def end(self, replies: Replies, tasks: Sequence[Task], engine: Engine, clock: Clock) -> Replies:
        """Return what the method may see of what came back."""
        form = union(list(declared_for(tasks, engine).values()))
        if form.why:  # it carries noise of its own
            return replies
        if self.budget is not None:
            self.budget.note(tasks, clock.round)
        dropped, found = list(replies.dropped), replies.found
        traffic = {client: list(both) for client, both in replies.traffic.items()}
        remarks: list[Dropped] = []
        sent, clients = self.client.clear(form), list(found.clients)
        try:
            if self.secure is None:
                opened = in_the_clear(found, sent, 1 if self.adds else FEWEST)
            else:
                opened, clients = self.secure.end(replies, sent, engine, clock)
            if self.budget is not None:
                opened = self.noised(opened, form, tasks, clock.round)
        except Refused as error:
            dropped += [] if self.secure else [Dropped(c, str(error)) for c in clients]
            clients, opened = [], Opened(form)
        if self.secure is not None:
            remarks = self.secure.settle(dropped, traffic)
        dropped.sort(key=lambda d: d.client)
        return Replies(Reduced(tuple(clients), opened), dropped, traffic, remarks=remarks)

    def noised(self, opened: Opened, form: Form, tasks: Sequence[Task], round: int) -> Opened:
        """Return means over all who were asked; with N(0, σ²) in the sums, if the server adds it.

        How many answered, and how many hold a class, is not told apart: with privacy all have rows
        of all classes.
        """
        budget = cast(Budget, self.budget)
        asked: Counter[Part] = Counter(part_of_task(task.payload, form) for task in tasks)
        everyone: Part = None
        asked[everyone] = budget.divisor(len(tasks), round)
        shown = replace(opened, form=real(form), sums={})
        counts = 0.0 if budget.void(round) else 1.0
        for part in sorted({part for _, part in opened.seen()}, key=lambda p: (p is not None, p)):
            self.releases[round] += 1
            source = self.source(round)
            for name in sorted(n for n, of in opened.seen() if of == part):
                total = opened.sums[name, part][0] * counts
                if name == WITHIN:
                    noisy = hidden(total, budget.bit_noise, 1.0, source)
                    budget.follow(float(noisy) / asked[part] + 0.5, round)
                    continue
                noisy = hidden(total, budget.sigma, budget.clip, source) if self.adds else total
                shown.sums |= as_declared(name, part, noisy, asked[part], form, tasks[0].payload)
        return shown

    @property
    def adds(self) -> bool:
        """Whether the server adds the noise, and not each client."""
        return self.budget is not None and self.budget.privacy.model == "central"

    def source(self, round: int) -> RandomBytes:
        """Return where the noise of one release comes from."""
        if not cast(Budget, self.budget).privacy.simulated:
            return os.urandom
        return seeded_bytes(self.seed, f"server/noise/{self.releases[round]}", round)


def in_the_clear(found: Reduced, form: Form, fewest: int) -> Opened:
    """Return sums of updates in the clear, over so many clients at least.

    What gets noise may be of one client.
    """
    if len(found.clients) < fewest:
        raise Refused(TOO_FEW)
    sums, opened = cast(Sums, found.totals), Opened(form)
    for key, pile in sums.piles.items():
        if pile.count >= fewest:
            opened.sums[key] = sums.total(key), float(pile.weight)
            if key[1] is not None:
                opened.counts[key[1]] = pile.count
    opened.counts[None] = len(found.clients)
    return opened


def as_declared(
    name: str, part: Part, noisy: Tensor, asked: int, form: Form, sent: Payload
) -> dict[Key, tuple[Tensor, float]]:
    """Return a sum of changes over all who were asked as the sums that the method declares."""
    how = form.how[name]
    if isinstance(how, ByClass):
        by = 1.0 if summed(how) else float(asked)
        return {(name, c): (row, by) for c, row in enumerate(noisy)}
    if isinstance(how, Total):  # counts, and below zero there are none
        return {(name, part): (noisy.clamp(min=0), 1.0)}
    return {(name, part): (restored(name, noisy / asked, sent).double(), 1.0)}


def real(form: Form) -> Form:
    """Return the form of noisy sums: counts are no whole numbers any more."""
    looks = {
        n: look if look.dtype.is_floating_point else look._replace(dtype=torch.float32)
        for n, look in form.tensors.items()
    }
    return replace(form, tensors=looks)


def declared_for(tasks: Sequence[Task], engine: Engine) -> Mapping[tuple[str, int], Form]:
    """Return what is declared for each kind of task."""
    kinds = {(task.action, id(task.payload)): task for task in tasks}
    return {kind: engine.declared(task) for kind, task in kinds.items()}


def told(tasks: Sequence[Task], facts: Mapping[str, Scalar]) -> list[Task]:
    """Tell each client some numbers more; a payload that tasks share stays one object."""
    new: dict[int, Payload] = {}
    for task in tasks:
        scalars = {**task.payload.scalars, **facts}
        new.setdefault(id(task.payload), replace(task.payload, scalars=scalars))
    return [replace(task, payload=new[id(task.payload)]) for task in tasks]
