"""The server's side of protection: it opens sums over clients, and nothing else of their updates.

Clipped updates are added up like any others. Ciphertexts are added up here, and a client decrypts
the sum. Noise is put into the sums before the method sees them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple, cast

import torch
from torch import Tensor

from fedtail.engines.base import Dropped, Engine, Replies
from fedtail.engines.runtime import Clock, Phase
from fedtail.errors import FedtailError
from fedtail.forms import ByClass, Form, Total, not_finite
from fedtail.privacy.budget import Budget
from fedtail.privacy.ckks import Adder, Damaged
from fedtail.privacy.client_side import (
    OPEN_SUM,
    OPENED,
    PART,
    PARTIES,
    SEALED,
    WHOLE,
)
from fedtail.privacy.clipping import CLIP, WITHIN, private_form, restored
from fedtail.privacy.layout import Opened, length, part_of_task, why_no_sum
from fedtail.privacy.noise import RandomBytes, hidden, seeded_bytes
from fedtail.protocol import ClientId, Payload, Scalar, Task, Update
from fedtail.reduce import Reduced, union
from fedtail.totals import Key, Part, Sums, summed

FEWEST = 2
"""A sum over one client is that client's update."""
TOO_FEW = "a sum over fewer than two clients would show one client's update"


class Unopened(FedtailError):
    """A sum that nobody may see, or nobody decrypted."""


class Ciphertexts(NamedTuple):
    """Ciphertexts that are added up together: of one part, or (None) of all updates."""

    part: Part
    sealed: list[Tensor]


@dataclass
class ServerProtection:
    """Shows a method sums over clients.

    Attributes
    ----------
    adder
        The server's half of the keys; none if updates are not encrypted.
    budget
        What is spent by showing noisy sums; none without differential privacy.
    seed
        Of the server's noise.
    """

    adder: Adder | None = None
    budget: Budget | None = None
    seed: int = 0
    releases: Counter[int] = field(default_factory=Counter)
    single: ClassVar[bool] = False

    def begin(self, tasks: Sequence[Task], engine: Engine, phase: Phase) -> Sequence[Task]:
        """Return the tasks as they are sent; refuse those whose answers cannot be protected."""
        declared = declared_for(tasks, engine)
        for form in declared.values():
            reason = why_no_sum(form)
            if reason:
                raise FedtailError(
                    f"this method cannot be protected: {reason} (it would leave the client in the "
                    "clear)"
                )
        if phase == "after" and tasks and self.budget is not None:
            raise FedtailError(
                "the method asks clients again after training, which the budget of differential "
                "privacy does not cover"
            )
        facts: dict[str, Scalar] = {} if self.adder is None else {PARTIES: len(tasks)}
        if self.budget is not None and self.budget.privacy.quantile is not None:
            facts[CLIP] = self.budget.clip
        return told(tasks, facts) if facts else tasks

    def end(self, replies: Replies, tasks: Sequence[Task], engine: Engine, clock: Clock) -> Replies:
        """Return what the method may see of what came back."""
        form = union(list(declared_for(tasks, engine).values()))
        if form.why:  # it carries noise of its own
            return replies
        if self.budget is not None:
            self.budget.note(tasks, clock.round)
        traffic = {client: list(both) for client, both in replies.traffic.items()}
        dropped, found = list(replies.dropped), replies.found
        sent = form if self.budget is None else private_form(form, self.budget.adaptive)
        clients = found.clients
        try:
            if self.adder is None:
                opened = in_the_clear(found, sent, 1 if self.adds else FEWEST)
            else:
                good = self.checked(found.each, sent, dropped)
                clients = tuple(u.client for u in good)
                opened = self.decrypted(good, sent, engine, clock, traffic)
            if self.budget is not None:
                opened = self.noised(opened, form, tasks, clock.round)
        except Unopened as error:
            dropped += [Dropped(client, str(error)) for client in clients]
            clients, opened = (), Opened(form)
        dropped.sort(key=lambda d: d.client)
        return Replies(Reduced(clients, opened), dropped, traffic)

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

    def checked(
        self, updates: Sequence[Update], form: Form, dropped: list[Dropped]
    ) -> list[Update]:
        """Leave out ciphertexts that cannot be added."""
        good = []
        for update in updates:
            try:
                for name, sealed in update.payload.group(SEALED).items():
                    cast(Adder, self.adder).check(sealed, length(form, name == PART))
                good.append(update)
            except Damaged as error:
                dropped.append(Dropped(update.client, str(error)))
        return good

    def decrypted(
        self,
        updates: Sequence[Update],
        form: Form,
        engine: Engine,
        clock: Clock,
        traffic: dict[ClientId, list[int]],
    ) -> Opened:
        """Add up ciphertexts and have a client decrypt the sums."""
        piles: dict[Part, Ciphertexts] = {}
        for update in updates:
            for name, sealed in update.payload.group(SEALED).items():
                part = None if name == WHOLE else update.payload.scalars[PART]
                piles.setdefault(part, Ciphertexts(part, [])).sealed.append(sealed)
        if len(updates) < FEWEST:
            raise Unopened(TOO_FEW)
        # A part that only one client has a share in stays closed.
        some = [pile for pile in piles.values() if len(pile.sealed) >= FEWEST]
        question = self.question(some, form)
        opened = Opened(form)
        numbers = answered(question, sorted({u.client for u in updates}), engine, clock, traffic)
        for pile, found in zip(some, numbers, strict=True):
            opened.read(found, pile.part, len(pile.sealed))
        return opened

    def question(self, piles: Sequence[Ciphertexts], form: Form) -> Payload:
        """Return the sums that a client is to decrypt."""
        tensors: dict[str, Tensor] = {}
        facts: dict[str, Scalar] = {}
        for number, pile in enumerate(piles):
            tensors[f"{SEALED}/{number}"] = cast(Adder, self.adder).add(pile.sealed)
            facts[f"length {number}"] = length(form, pile.part is not None)
            facts[f"count {number}"] = len(pile.sealed)
        return Payload(tensors, facts)


def answered(
    question: Payload,
    clients: Sequence[ClientId],
    engine: Engine,
    clock: Clock,
    traffic: dict[ClientId, list[int]],
) -> list[Tensor]:
    """Return decrypted sums of the first client that can."""
    reason = "no answer"
    for client in clients:
        done = engine.ask(Task(client, OPEN_SUM, question), clock)
        both = traffic.setdefault(client, [0, 0])
        both[0] += question.nbytes
        reason = done.reason
        if done.payload is None:
            continue
        both[1] += done.payload.nbytes
        opened = done.payload.group(OPENED)
        lengths = {n: int(question.scalars[f"length {n}"]) for n in question.group(SEALED)}
        reason = not_finite(done.payload)
        if {n: t.numel() for n, t in opened.items()} != lengths:
            reason = "sent other numbers than it was asked for"
        if not reason:
            return [opened[number].double().flatten() for number in lengths]
    raise Unopened(f"no client could decrypt the sum ({reason})")


def in_the_clear(found: Reduced, form: Form, fewest: int) -> Opened:
    """Return sums that were not encrypted, over so many clients at least.

    What gets noise may be of one client.
    """
    if len(found.clients) < fewest:
        raise Unopened(TOO_FEW)
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
