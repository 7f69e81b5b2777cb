"""What an engine does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fedtail.engines.executor import Done
from fedtail.engines.runtime import Clock, Phase
from fedtail.forms import Form
from fedtail.metrics import Evaluation
from fedtail.protocol import ClientId, Task, Tensors
from fedtail.reduce import Reduced


class ClientStates(dict[ClientId, dict[str, Tensor]]):
    """What clients remember, and whose memory is new.

    Only what is set item by item is new: `update` puts back what a checkpoint has.
    """

    def __init__(self) -> None:
        super().__init__()
        self._news: set[ClientId] = set()
        self._before: dict[ClientId, dict[str, Tensor] | None] | None = None

    def __setitem__(self, client: ClientId, state: dict[str, Tensor]) -> None:
        if self._before is None:
            self._news.add(client)
        else:
            self._before.setdefault(client, self.get(client))
        super().__setitem__(client, state)

    def news(self) -> frozenset[ClientId]:
        """Return whose state was set since this was last asked."""
        news, self._news = frozenset(self._news), set()
        return news

    @contextmanager
    def forgotten(self) -> Iterator[None]:
        """Undo at the end what is set in this block, at the cost of what is set."""
        outer = self._before
        self._before = before = dict[ClientId, dict[str, Tensor] | None]()
        try:
            yield
        finally:
            self._before = outer
            for client, state in before.items():
                if state is None:
                    del self[client]
                else:
                    super().__setitem__(client, state)


@dataclass(frozen=True)
class Dropped:
    """A client whose answer could not be used, and why: it raised, or the answer is refused."""

    client: ClientId
    reason: str
    raised: bool = False


@dataclass(frozen=True)
class Replies:
    """What came back from one exchange.

    Attributes
    ----------
    found
        The good updates, added up as their form says.
    dropped
        Who was left out, and why.
    traffic
        Bytes to and from each client.
    answered
        The tasks whose answers were used.
    remarks
        What else was wrong with a client whose answer was used.
    """

    found: Reduced
    dropped: list[Dropped]
    traffic: Mapping[ClientId, Sequence[int]]
    answered: Sequence[Task] = ()
    remarks: Sequence[Dropped] = ()


class Engine(Protocol):
    """Carries tasks to clients and updates back."""

    states: ClientStates

    def perform(
        self, tasks: Sequence[Task], round: int, rounds: int, single: bool = False
    ) -> Replies:
        """Have the tasks done; a client whose answer cannot be used is dropped, never the round.

        What a client half raises may end the run instead; it does on the embedded engine, unless
        it was told to drop such clients, too.
        """

    def ask(self, tasks: Sequence[Task], clock: Clock) -> list[Done]:
        """Have tasks done that no method asked for, and that change nothing at the clients."""

    def declared(self, task: Task) -> Form:
        """Return what the method declares that clients answer to a task."""

    def announced(self, client: ClientId) -> int | None:
        """Return how many samples a client said at the start that it has; none if it did not."""

    def begin(self, round: int, phase: Phase) -> None:
        """Begin a phase of a round: what follows draws the same numbers whenever it is done."""

    def evaluate(self, tensors: Tensors) -> Evaluation:
        """Test a model on the global test set."""

    def close(self) -> None:
        """Stop what was started."""


class ServerSide(Protocol):
    """What the server makes of answers before a method sees them: opened, noisy or robust sums."""

    @property
    def single(self) -> bool:
        """Whether it needs every update by itself."""

    @property
    def apart(self) -> bool:
        """Whether answers must not be added up where they are made."""

    def begin(self, tasks: Sequence[Task], engine: Engine, clock: Clock) -> Sequence[Task]:
        """Return the tasks as they are sent; refuse those whose answers cannot be protected."""

    def end(self, replies: Replies, tasks: Sequence[Task], engine: Engine, clock: Clock) -> Replies:
        """Return what the method may see of what came back."""
