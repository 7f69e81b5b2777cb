"""A secure sum played by hand: real members at one table, and a server that may lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedtail.engines.executor import Done
from fedtail.privacy.secure.crypto import Numbers
from fedtail.privacy.secure.desk import Desk
from fedtail.privacy.secure.exchange import SecureExchange, Steps
from fedtail.privacy.secure.member import SECURE, Identity, Member
from fedtail.privacy.secure.terms import Refused, SumKind, Terms, new_attempt, payload_digest
from fedtail.protocol import ClientId, Payload, Task

MODEL = Payload({"model/w": torch.tensor([0.5, -1.5])}, {"lr": 0.1})
LAYOUT = "ab" * 32
Change = Callable[[Task], Task | None]
"""What a server that lies sends instead; nothing if the message is lost."""


def terms(clients: Sequence[ClientId] = (0, 1, 2, 3), threshold: int = 3) -> Terms:
    """Return the terms of a sum of vectors of 64-bit numbers."""
    kind = SumKind(None, "train", payload_digest(MODEL, SECURE), LAYOUT)
    return Terms(
        "a run", 1, "training", new_attempt(), threshold, 64, tuple(clients), len(clients), kind
    )


def vector(client: ClientId) -> Numbers:
    """Return what a client adds: k + 1 everywhere, and one number below zero."""
    return np.array([client + 1] * 4 + [-(client + 1)], np.int64).astype(np.uint64)


@dataclass
class Table:
    """Members, each with a desk of its own, and one secure sum."""

    folder: Path
    sum: SecureExchange
    identities: Mapping[ClientId, Identity] = field(default_factory=dict)

    def member(self, client: ClientId) -> Member:
        """Return a member as it is after a restart: what it knows is on its desk."""
        return Member(Desk(self.folder / str(client)), self.identities.get(client))

    def ask(self, task: Task | None) -> Done:
        """Send a member something; what it refuses is the reason."""
        if task is None:
            return Done(None, {}, "lost")
        try:
            return Done(self.member(task.client).perform(task), {})
        except Refused as error:
            return Done(None, {}, str(error))

    def drive(self, steps: Steps[Any], change: Change = lambda task: task) -> Any:
        """Carry the server's steps through, with messages as a lying server changes them."""
        answer: Any = None
        while True:
            try:
                tasks = steps.send(answer)
            except StopIteration as stop:
                return stop.value
            answer = [self.ask(change(task)) for task in tasks]

    def deliver(
        self, client: ClientId, sent: Payload | None = None, action: str = "train"
    ) -> Numbers:
        """Return a member's masked vector."""
        x = vector(client)
        told = self.sum.told(MODEL) if sent is None else sent
        self.member(client).masked(Task(client, action, told), LAYOUT, x)
        return x

    def total(self, delivered: Sequence[ClientId], change: Change = lambda task: task) -> list[int]:
        """Return the sum of the vectors of those who delivered."""
        vectors = [self.deliver(client) for client in delivered]
        masks = self.drive(self.sum.masks(delivered, 5), change)
        found: Numbers = sum(vectors[1:], start=vectors[0].copy()) - masks
        return [int(number) for number in found.view(np.int64)]


def table(folder: Path, agreed: Terms | None = None) -> Table:
    """Return a table at which keys and shares are still to be made."""
    return Table(folder, SecureExchange(terms() if agreed is None else agreed))


def expected(clients: Sequence[ClientId]) -> list[int]:
    """Return the sum of some clients' vectors."""
    total = sum(client + 1 for client in clients)
    return [total] * 4 + [-total]
