"""Secure sums in an exchange of a method: from its tasks to the sums that it may see."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np

from fedtail.engines.base import Dropped, Engine, Replies
from fedtail.engines.executor import Done
from fedtail.engines.runtime import Clock
from fedtail.errors import FedtailError
from fedtail.forms import Form
from fedtail.privacy.client_side import ClientProtection, masked_name
from fedtail.privacy.layout import REAL_BITS, Opened, length, part_of, slots
from fedtail.privacy.secure.crypto import Numbers
from fedtail.privacy.secure.exchange import SecureExchange, Steps, T
from fedtail.privacy.secure.fixed import decoded, layout_digest
from fedtail.privacy.secure.member import SECURE
from fedtail.privacy.secure.terms import (
    MOST_MEMBERS,
    Refused,
    SumKind,
    Terms,
    new_attempt,
    payload_digest,
    threshold_of,
)
from fedtail.protocol import ClientId, Scalar, Task
from fedtail.totals import Sums


@dataclass
class SecureSums:
    """The server's half of a run's secure sums: one for each part, or several for many clients.

    Attributes
    ----------
    run
        What tells runs apart.
    share
        The threshold, as a share of those who are asked.
    client
        The clients' side, which says what is added up.
    real
        f of real numbers in this exchange.
    """

    run: str
    share: float
    client: ClientProtection
    real: int = REAL_BITS
    groups: list[SecureExchange] = field(default_factory=list)
    sent: dict[int, SecureExchange] = field(default_factory=dict)  # by the identity of payloads

    def begin(
        self, tasks: Sequence[Task], engine: Engine, clock: Clock, real: int = REAL_BITS
    ) -> list[Task]:
        """Have keys and shares made, and return the tasks of those who did."""
        self.real, attempt = real, new_attempt()
        kinds = self._kinds(tasks, engine)
        self.groups, self.sent, found = [], {}, []
        for kind, some in kinds.items():
            for cohort in in_groups(sorted(task.client for task in some)):
                terms = self._terms(kind, cohort, len(tasks), attempt, clock)
                self.groups.append(SecureExchange(terms))
        driven(self.groups, [group.begin() for group in self.groups], engine, clock)
        for group in self.groups:
            if group.failed:
                continue
            members = [t for t in kinds[group.terms.kind] if t.client in group.seeds]
            told = group.told(members[0].payload)
            self.sent[id(told)] = group
            found += [replace(task, payload=told) for task in members]
        return found

    def _kinds(self, tasks: Sequence[Task], engine: Engine) -> dict[SumKind, list[Task]]:
        """Return who is asked what; those of one part must be asked the same."""
        seen: dict[tuple[str, int], SumKind] = {}
        kinds: dict[SumKind, list[Task]] = {}
        for task in tasks:
            key = task.action, id(task.payload)
            if key not in seen:
                form = self.client.clear(engine.declared(task))
                layout = layout_digest(form, self.real)
                sent = payload_digest(task.payload, SECURE)
                seen[key] = SumKind(part_of(form), task.action, sent, layout)
            kinds.setdefault(seen[key], []).append(task)
        if len({kind.part for kind in kinds}) < len(kinds):
            raise FedtailError(
                "this method cannot be secure: it sends different things to clients whose updates "
                "are added up, by which a server could tell them apart"
            )
        for some in kinds.values():
            if len({task.client for task in some}) < len(some):
                raise FedtailError(
                    "this method cannot be secure: it adds up two updates of one client"
                )
        return kinds

    def _terms(
        self,
        kind: SumKind,
        cohort: Sequence[ClientId],
        addends: int,
        attempt: str,
        clock: Clock,
    ) -> Terms:
        return Terms(
            run=self.run,
            round=clock.round,
            phase=clock.phase,
            attempt=attempt,
            threshold=threshold_of(self.share, len(cohort)),
            width=self.client.bits,
            cohort=tuple(cohort),
            addends=addends,
            kind=kind,
        )

    def end(
        self, replies: Replies, form: Form, engine: Engine, clock: Clock
    ) -> tuple[Opened, list[ClientId]]:
        """Have the sums of masked vectors opened; return them, and whose updates are in them."""
        alive = [group for group in self.groups if not group.failed]
        whole, part = length(form, False), length(form, True)
        delivered: dict[int, list[ClientId]] = {id(group): [] for group in alive}
        for task in replies.answered:
            delivered[id(self.sent[id(task.payload)])].append(task.client)
        steps = [group.masks(delivered[id(group)], whole + part) for group in alive]
        masks = driven(alive, steps, engine, clock)
        by_part: dict[Scalar | None, list[int]] = {}
        for number, group in enumerate(alive):
            by_part.setdefault(group.terms.kind.part, []).append(number)
        opened, clients = Opened(form), list[ClientId]()
        total: Numbers | None = None
        for name, numbers in by_part.items():
            found = [masks[number] for number in numbers]
            if any(mask is None for mask in found):  # its vectors cannot be taken out again
                self._give_up([alive[number] for number in numbers])
                continue
            vector = as_numbers(cast(Sums, replies.found.totals), name, alive[0].terms.width)
            for mask in found:
                vector -= cast(Numbers, mask)
            members = [c for number in numbers for c in delivered[id(alive[number])]]
            clients += members
            total = vector[:whole] if total is None else total + vector[:whole]
            if name is not None:
                numbers_of_part = decoded(vector[whole:], list(slots(form, True)), self.real)
                opened.read(numbers_of_part, name, len(members))
        if total is None:
            raise Refused(next((g.failed for g in self.groups), "nobody was asked"))
        opened.read(decoded(total, list(slots(form, False)), self.real), None, len(clients))
        return opened, sorted(clients)

    @staticmethod
    def _give_up(groups: Sequence[SecureExchange]) -> None:
        reason = next(group.failed for group in groups if group.failed)
        for group in groups:
            group.failed = group.failed or reason

    def settle(self, dropped: list[Dropped], traffic: dict[ClientId, list[int]]) -> list[Dropped]:
        """Add what the steps cost and whom they lost, and return what else was wrong with whom."""
        for group in self.groups:
            dropped += group.dropped
            if group.failed:
                rest = set(group.terms.cohort) - {d.client for d in dropped}
                dropped += [Dropped(client, group.failed) for client in rest]
            for client, (down, up) in group.traffic.items():
                both = traffic.setdefault(client, [0, 0])
                both[0] += down
                both[1] += up
        return [remark for group in self.groups for remark in group.remarks]


def in_groups(clients: Sequence[ClientId]) -> list[Sequence[ClientId]]:
    """Return clients as groups of `MOST_MEMBERS` at most, as equal as can be."""
    count = math.ceil(len(clients) / MOST_MEMBERS)
    return [clients[number::count] for number in range(count)]


def driven(
    groups: Sequence[SecureExchange], steps: Sequence[Steps[T]], engine: Engine, clock: Clock
) -> list[T | None]:
    """Carry secure sums through, step by step together; one that fails leaves the others."""
    results: list[T | None] = [None] * len(groups)
    answers: dict[int, list[Done] | None] = dict.fromkeys(range(len(groups)))
    while answers:
        asked: dict[int, list[Task]] = {}
        for number, answer in answers.items():
            try:
                asked[number] = steps[number].send(cast(list[Done], answer))  # none starts it
            except StopIteration as stop:
                results[number] = stop.value
            except Refused as error:
                groups[number].failed = str(error)
        done = answered([task for some in asked.values() for task in some], engine, clock)
        answers = {number: [next(done) for _ in some] for number, some in asked.items()}
    return results


def answered(tasks: Sequence[Task], engine: Engine, clock: Clock) -> Iterator[Done]:
    """Have tasks done; a client that has several of them, one after the other."""
    ahead = list(tasks)
    found: dict[int, Done] = {}
    while ahead:
        wave = {task.client: task for task in reversed(ahead)}
        some = list(wave.values())
        found |= {id(task): done for task, done in zip(some, engine.ask(some, clock), strict=True)}
        ahead = [task for task in ahead if id(task) not in found]
    return iter([found[id(task)] for task in tasks])


def as_numbers(sums: Sums, part: Scalar | None, bits: int) -> Numbers:
    """Return a sum of masked vectors modulo 2^w."""
    total = sums.piles[masked_name(part), None].whole[0]
    return total.numpy().astype(np.uint32 if bits == 32 else np.uint64)
