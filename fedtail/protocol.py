"""The vocabulary: what a server half and a client half say to each other.

A method never sends, samples devices, opens files or touches global random state. Its server half
is made of generators that yield `Task`s and are sent sums of `Update`s; its client half is plain
functions from a `Payload` and a `Client` to a `Payload`. An engine carries the messages.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from fedtail.rng import numpy_generator, torch_generator

if TYPE_CHECKING:
    from fedtail.data.federation import ClientData, ServerData
    from fedtail.models.split_model import SplitModel
    from fedtail.privacy.cohorts import Cohorts
    from fedtail.reduce import Reduced

ClientId = int
Scalar = int | float | str | bool
Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Payload:
    """What travels in one direction.

    Attributes
    ----------
    tensors
        Flat names, grouped by what stands before the slash: ``model/fc.weight``, ``grad/weight``.
        Extras with one row per class are ragged in dimension 0, with an index tensor beside them.
    scalars
        Small facts: the number of samples, of steps, a loss.
    """

    tensors: Tensors = field(default_factory=dict)
    scalars: Mapping[str, Scalar] = field(default_factory=dict)

    def group(self, name: str) -> dict[str, Tensor]:
        """Return the tensors of one group, without the group's name."""
        prefix = f"{name}/"
        return {
            key.removeprefix(prefix): t for key, t in self.tensors.items() if key.startswith(prefix)
        }

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the tensors and scalars: what the traffic counters count."""
        tensors = sum(t.numel() * t.element_size() for t in self.tensors.values())
        return tensors + sum(
            len(s.encode()) if isinstance(s, str) else 8 for s in self.scalars.values()
        )


T = TypeVar("T")


def grouped(group: str, named: Mapping[str, T]) -> dict[str, T]:
    """Put a group's name before the names: the inverse of `Payload.group`."""
    return {f"{group}/{name}": item for name, item in named.items()}


@dataclass(frozen=True)
class Task:
    """Server to one client: do `action` (the name of a function of the client half)."""

    client: ClientId
    action: str
    payload: Payload


@dataclass(frozen=True)
class Update:
    """One client's answer to one task."""

    client: ClientId
    payload: Payload


S = TypeVar("S")
Exchange = Generator[list[Task], "Reduced", S]
"""Yields tasks, is sent what came of them, added up as their form says; returns the new state."""


@dataclass(frozen=True)
class Server:
    """What the server half may use in one round.

    Attributes
    ----------
    round, rounds
        The number of this round, from 1 (0 in `setup`), and how many there will be.
    clients
        All client ids.
    per_round
        How many clients a cohort has.
    model
        The one resident model of the server; its weights are scratch.
    data
        Samples that no client holds, for the methods that need them.
    cohorts
        Who draws the clients of a private run.
    classes
        What the classes are called, if that is known.
    """

    round: int
    rounds: int
    clients: Sequence[ClientId]
    per_round: int
    num_classes: int
    model: SplitModel
    seed: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    data: ServerData | None = None
    logged: dict[str, Scalar] = field(default_factory=dict)
    cohorts: Cohorts | None = None
    classes: tuple[str, ...] = ()

    def cohort(
        self,
        size: int | None = None,
        among: Sequence[ClientId] | None = None,
        purpose: str = "cohort",
    ) -> list[ClientId]:
        """Draw distinct clients, in ascending order; the draw depends on seed and round only.

        In a private run the round's own cohort is drawn so that nobody can know it.
        """
        if self.cohorts is not None and size is None and among is None and self.round:
            return self.cohorts.asked(self.round)
        pool = self.clients if among is None else among
        size = min(self.per_round if size is None else size, len(pool))
        chosen = self.rng(purpose).choice(len(pool), size=size, replace=False)
        return sorted(pool[int(i)] for i in chosen)

    def generator(self, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
        """Return a torch generator of this round's own."""
        return torch_generator(self.seed, f"server/{purpose}", self.round, device=device)

    def rng(self, purpose: str) -> np.random.Generator:
        """Return a NumPy generator of this round's own."""
        return numpy_generator(self.seed, f"server/{purpose}", self.round)

    def log(self, name: str, value: Scalar) -> None:
        """Put a number of the method's own into this round's line of ``metrics.jsonl``.

        What `setup` logs stands in the line of round 1.
        """
        try:
            plain: Any = value.item() if hasattr(value, "item") else value
        except (RuntimeError, ValueError):  # a tensor or an array of several numbers
            plain = value
        if plain is not None and not isinstance(plain, Scalar):
            kind = type(value).__name__
            raise TypeError(f"server.log({name!r}, ...) takes one number or text, not a {kind}")
        self.logged[name] = cast(Scalar, plain)


@dataclass(frozen=True)
class Client:
    """What the client half may use in one task.

    Attributes
    ----------
    data
        The local samples.
    counts
        How many local samples each class has; zero for the absent ones.
    model
        The one resident model; a task loads what it received into it.
    state
        Named tensors that persist from this client's one task to its next. Replace them, do not
        change them in place: a client that is dropped keeps the old ones.
    turn
        How many tasks this client did earlier in the same round.
    base
        The user's own model, where the method trains another: what is tested may be of either.
    classes
        What the classes are called, if that is known.
    """

    id: ClientId
    data: ClientData
    counts: Tensor
    model: SplitModel
    state: MutableMapping[str, Tensor]
    round: int
    rounds: int
    turn: int = 0
    seed: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    base: SplitModel | None = None
    classes: tuple[str, ...] = ()

    @property
    def num_classes(self) -> int:
        """The number of classes of the whole federation."""
        return len(self.counts)

    def generator(self, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
        """Return a torch generator of this task's own."""
        stream = client_stream(purpose, self.turn)
        return torch_generator(self.seed, stream, self.round, self.id, device)


def client_stream(purpose: str, turn: int) -> str:
    """Return the name of a stream of one of a client's tasks, beside round and client."""
    return f"client/{purpose}/{turn}"
