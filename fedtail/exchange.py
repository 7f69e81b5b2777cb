"""One exchange after the other: tasks out, updates in, and what that cost."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fedtail.engines.base import Dropped, Engine, Replies
from fedtail.errors import RunStopped, blaming
from fedtail.protocol import Exchange, Server, Task

S = TypeVar("S")
EMPTY_ROUNDS = 3
"""How many rounds in a row without a valid update stop a run."""


@dataclass
class Ledger:
    """What one round's exchanges cost, and who took part.

    Attributes
    ----------
    traffic
        Bytes to and from each client.
    clients
        Whose update was used.
    dropped
        Whose was not, and why.
    remarks
        What else was wrong with whose.
    kept
        Whether an exchange brought nothing, so that the old state was kept.
    hides
        Whether nobody may know who was asked.
    """

    traffic: dict[int, list[int]] = field(default_factory=dict)
    clients: set[int] = field(default_factory=set)
    dropped: list[Dropped] = field(default_factory=list)
    remarks: list[Dropped] = field(default_factory=list)
    kept: bool = False
    hides: bool = False

    def count(self, client: int, direction: int, nbytes: int) -> None:
        """Add bytes sent down (0) or up (1)."""
        self.traffic.setdefault(client, [0, 0])[direction] += nbytes

    def add(self, replies: Replies) -> None:
        """Add one exchange."""
        self.dropped += replies.dropped
        self.remarks += replies.remarks
        self.clients.update(replies.found.clients)
        for client, (down, up) in replies.traffic.items():
            self.count(client, 0, down)
            self.count(client, 1, up)


def drive(exchange: Exchange[S], state: S, engine: Engine, server: Server, ledger: Ledger) -> S:
    """Carry one generator of a method through: tasks out, updates in, until it returns a state.

    If an exchange brings no valid update, the state stays as it was, and nobody's update was used;
    if all its clients raised, the run stops.
    """
    answer: Any = None  # what starts a generator
    where = f"server half, round {server.round}"
    while True:
        try:
            with blaming(where):
                tasks = _generator(exchange).send(answer)
        except StopIteration as stop:
            new: S = stop.value
            with blaming(where):
                if new is None and state is not None:
                    raise TypeError(
                        "the round's new state is None: is a 'return' missing?"
                    ) from None
            return new
        wrong = _wrong(tasks, server)
        if wrong:
            with blaming(where):
                with suppress(StopIteration):  # at its `yield`: the traceback has the line
                    exchange.throw(TypeError(wrong))
                raise TypeError(wrong)  # the method caught it, and went on
        replies = engine.perform(tasks, server.round, server.rounds)
        ledger.add(replies)
        if tasks and not replies.found.clients:
            if replies.dropped and all(d.raised for d in replies.dropped):
                said = first_reason(replies.dropped, ledger.hides)
                raise RunStopped(f"round {server.round}: every client failed, {said}")
            ledger.kept = True
            ledger.clients.clear()
            exchange.close()
            return state
        answer = replies.found


def _generator(exchange: Exchange[S]) -> Exchange[S]:
    if not hasattr(exchange, "send"):
        kind = type(exchange).__name__
        raise TypeError(f"an exchange yields lists of tasks and returns a state; this is a {kind}")
    return exchange


def _wrong(tasks: Any, server: Server) -> str:
    """Return what is wrong with what a method yielded; nothing if it can be done."""
    if not isinstance(tasks, Sequence) or not all(isinstance(task, Task) for task in tasks):
        return f"an exchange yields lists of tasks, not a {type(tasks).__name__}"
    known = server.clients if isinstance(server.clients, range) else frozenset(server.clients)
    for task in tasks:
        number = isinstance(task.client, int) or hasattr(task.client, "__index__")
        if not number or operator.index(task.client) not in known:
            return f"task '{task.action}' is for client {task.client!r}, and there is none"
    return ""


def first_reason(dropped: Sequence[Dropped], hides: bool = False) -> str:
    """Return the first of many reasons, with whose it is if that may be known."""
    if not dropped:
        return "no answer"
    whose = "of a client" if hides else f"client {dropped[0].client}"
    return f"the first, {whose}: {dropped[0].reason}"


def stop_if_empty(empty: Sequence[bool], last: bool, ledger: Ledger) -> None:
    """Stop a run that learns nothing any more, or that ends without having learned anything.

    Parameters
    ----------
    empty
        Of each round so far, whether it had no valid update.
    last
        Whether there will be no other round.
    ledger
        Of the last of them.
    """
    in_a_row = next((n for n, one in enumerate(reversed(empty)) if not one), len(empty))
    if in_a_row >= EMPTY_ROUNDS or (last and in_a_row == len(empty)):
        rounds = "1 round" if in_a_row == 1 else f"{in_a_row} rounds"
        said = first_reason(ledger.dropped, ledger.hides)
        raise RunStopped(f"no valid update in {rounds}, up to round {len(empty)} ({said})")
