"""What an engine does."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from fedtail.metrics import Evaluation
from fedtail.protocol import ClientId, Task, Tensors, Update

ClientStates = MutableMapping[ClientId, dict[str, Tensor]]


@dataclass(frozen=True)
class Dropped:
    """A client whose answer could not be used, and why: it raised, or the answer is refused."""

    client: ClientId
    reason: str
    raised: bool = False


@dataclass(frozen=True)
class Replies:
    """What came back from one exchange: good updates sorted by client, and who was dropped.

    Attributes
    ----------
    traffic
        Bytes to and from each client, where they are not those of the tasks and the updates:
        ciphertexts, and the decryption of their sum.
    """

    updates: list[Update] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    traffic: Mapping[ClientId, Sequence[int]] | None = None


class Engine(Protocol):
    """Carries tasks to clients and updates back."""

    states: ClientStates

    def perform(self, tasks: Sequence[Task], round: int, rounds: int) -> Replies:
        """Have the tasks done; a client whose answer cannot be used is dropped, never the round.

        What a client half raises may end the run instead; it does on the embedded engine, unless
        it was told to drop such clients, too.
        """

    def after_training(self, round: int, test: bool = False) -> None:
        """Give what follows in this round the same random numbers whenever it is done.

        It is what comes after training, or the test of the clients' own models.
        """

    def evaluate(self, tensors: Tensors) -> Evaluation:
        """Test a model on the global test set."""

    def close(self) -> None:
        """Stop what was started."""
