"""What an engine does, and the rule by which it refuses an update."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
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
    usual = _usual(tasks, ordered)
    good, dropped = [], list(failed)
    for update in ordered:
        reason = _defect(update, sent, usual[update.client])
        if reason is None:
            good.append(update)
        else:
            dropped.append(Dropped(update.client, reason))
    return Replies(good, sorted(dropped, key=lambda d: d.client))


Form = tuple[tuple[str, int, torch.Size, torch.dtype], ...]


def _form(update: Update) -> Form:
    """Names, row shapes and types: dimension 0 may differ from client to client (ragged extras)."""
    tensors = sorted(update.payload.tensors.items())
    return tuple((name, t.ndim, t.shape[1:], t.dtype) for name, t in tensors)


def _usual(tasks: Sequence[Task], updates: Sequence[Update]) -> dict[ClientId, list[Form]]:
    """Return for each client the forms that most updates have of those asked to do the same.

    A client that was given several actions in one exchange answers in as many forms.
    """
    asked: dict[ClientId, frozenset[str]] = {}
    for task in tasks:
        asked[task.client] = asked.get(task.client, frozenset()) | {task.action}
    forms: dict[frozenset[str], Counter[Form]] = {}
    for update in updates:
        forms.setdefault(asked[update.client], Counter())[_form(update)] += 1
    usual = {
        actions: [form for form, _ in counter.most_common(len(actions))]
        for actions, counter in forms.items()
    }
    return {update.client: usual[asked[update.client]] for update in updates}


def _defect(
    update: Update, sent: dict[tuple[ClientId, str], torch.Size], usual: list[Form]
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
    if _form(update) not in usual:
        odd = sorted(name for name, *_ in set(_form(update)) ^ set(usual[0]))
        return f"sent other tensors than the rest of the cohort ({odd[0]})"
    return None
