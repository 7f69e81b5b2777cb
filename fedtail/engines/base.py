"""What an engine does, and the rule by which it refuses an update."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from fedtail.metrics import Evaluation
from fedtail.protocol import ClientId, Task, Tensors, Update

ClientStates = MutableMapping[ClientId, dict[str, Tensor]]


@dataclass(frozen=True)
class Dropped:
    """A client whose answer could not be used, and why."""

    client: ClientId
    reason: str


@dataclass(frozen=True)
class Replies:
    """What came back from one exchange: good updates sorted by client, and who was dropped."""

    updates: list[Update] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)


class Engine(Protocol):
    """Carries tasks to clients and updates back."""

    states: ClientStates

    def perform(self, tasks: Sequence[Task], round: int, rounds: int) -> Replies:
        """Have the tasks done; a client that fails is dropped, never the round."""

    def evaluate(self, tensors: Tensors) -> Evaluation:
        """Test a model on the global test set."""

    def close(self) -> None:
        """Stop what was started."""


def sift(
    tasks: Sequence[Task], updates: Iterable[Update], failed: Iterable[Dropped] = ()
) -> Replies:
    """Separate the updates that can be used from those that cannot.

    An update is refused if a number in it is NaN or infinite, if a tensor that it sends back under
    the name it received it with has another shape, or if its names and row shapes are not those of
    most updates to the same action.
    """
    sent = {
        (task.client, name): t.shape for task in tasks for name, t in task.payload.tensors.items()
    }
    ordered = sorted(updates, key=lambda update: update.client)
    usual = _majority(_form(update) for update in ordered)
    good, dropped = [], list(failed)
    for update in ordered:
        reason = _defect(update, sent, usual)
        if reason is None:
            good.append(update)
        else:
            dropped.append(Dropped(update.client, reason))
    return Replies(good, sorted(dropped, key=lambda d: d.client))


Form = tuple[tuple[str, torch.Size, torch.dtype], ...]


def _form(update: Update) -> Form:
    """Names, row shapes and types: dimension 0 may differ from client to client (ragged extras)."""
    tensors = sorted(update.payload.tensors.items())
    return tuple((name, t.shape[1:], t.dtype) for name, t in tensors)


def _majority(forms: Iterable[Form]) -> Form:
    ranked = Counter(forms).most_common(1)
    return ranked[0][0] if ranked else ()


def _defect(
    update: Update, sent: dict[tuple[ClientId, str], torch.Size], usual: Form
) -> str | None:
    for name, value in update.payload.scalars.items():
        if isinstance(value, float) and not math.isfinite(value):
            return f"sent {name} = {value}"
    for name, tensor in update.payload.tensors.items():
        expected = sent.get((update.client, name), tensor.shape)
        if tensor.shape != expected:
            return f"sent {name} of shape {tuple(tensor.shape)}, not {tuple(expected)}"
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            return f"sent NaN or infinity in {name}"
    if _form(update) != usual:
        odd = sorted(set(_form(update)) ^ set(usual))
        return f"sent other tensors than the rest of the cohort ({odd[0][0]})"
    return None
