"""Where tasks are done: the shared data and one resident model, in this process or in a worker."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from fedtail.data.federation import Federation
from fedtail.errors import FedtailError
from fedtail.forms import Form, defect
from fedtail.methods.base import Method
from fedtail.metrics import Evaluation
from fedtail.models.split_model import SplitModel
from fedtail.protocol import OPEN_SUM, Client, Payload, Task, Tensors
from fedtail.rng import contained, derive
from fedtail.standardise import without_constants

TEST_BATCH = 500


class Withheld(FedtailError):
    """An answer that its client's shield does not let out; the method has not failed."""


@dataclass(frozen=True)
class Clock:
    """When a task happens: the round, and how many tasks its client did in it before."""

    round: int
    rounds: int
    turn: int = 0


class Shielding(Protocol):
    """The clients' half of encryption and differential privacy (`fedtail.privacy.shield`)."""

    def close(self, answer: Payload, task: Payload, client: Client) -> Payload:
        """Return an update as it may leave the client."""

    def open_sum(self, task: Payload) -> Payload:
        """Decrypt the sums that the server made."""


@dataclass
class Runtime:
    """Does tasks one after the other. What it gives depends on the task alone.

    Attributes
    ----------
    base, model
        The user's model, and the one that the method trains (often the same).
    shield
        What protects updates before they leave, if anything does.
    """

    federation: Federation
    method: Method[Any]
    base: SplitModel
    model: SplitModel
    seed: int
    device: torch.device
    shield: Shielding | None = None

    def perform(self, task: Task, state: MutableMapping[str, Tensor], clock: Clock) -> Payload:
        """Do one task for one client; `state` is changed in runtime."""
        if task.action == OPEN_SUM and self.shield is not None:
            with _withholding():
                return self.shield.open_sum(task.payload)
        if task.action not in self.method.actions():
            raise FedtailError(f"method '{self.method.name}' has no client action '{task.action}'")
        payload, told = without_constants(task.payload)
        client = Client(
            id=task.client,
            data=self.federation.client(task.client, told),
            counts=self.federation.counts(task.client),
            model=self.model,
            state=state,
            round=clock.round,
            rounds=clock.rounds,
            turn=clock.turn,
            seed=self.seed,
            device=self.device,
        )
        # Dropout draws from torch's global stream; see `contained`.
        stream = derive(self.seed, f"stream/{task.action}/{clock.turn}", clock.round, task.client)
        with contained(stream, self.device):
            answer = getattr(self.method, task.action)(payload, client)
        if not isinstance(answer, Payload):
            kind = type(answer).__name__
            raise TypeError(f"'{task.action}' of '{self.method.name}' returns {kind}, no Payload")
        if self.shield is None:
            return answer
        # Once it is sealed, nobody can look at it any more.
        reason = defect(answer, self.form(task), len(client.data))
        if reason:
            raise Withheld(reason)
        with _withholding():
            return self.shield.close(answer, task.payload, client)

    def form(self, task: Task) -> Form:
        """Return what the method declares that clients answer to a task."""
        declared = getattr(self.method, f"{task.action}_form", None)
        if task.action not in self.method.actions() or declared is None:
            raise FedtailError(
                f"method '{self.method.name}' has no client action '{task.action}' with a form: "
                f"mark the action with @action, and declare what clients answer to it in "
                f"'{task.action}_form(self, task, model, classes)'"
            )
        form: Form = declared(task.payload, self.model, self.federation.num_classes)
        return form

    def load_tested(self, tensors: Tensors) -> SplitModel:
        """Put a tested model into the resident model that has its names."""
        return tested_model(self.base, self.model, tensors)

    def evaluate(self, tested: SplitModel, start: int, stop: int) -> Evaluation:
        """Test a loaded model on one range of the test set."""
        x, y = self.federation.test_batch(start, stop)
        with torch.inference_mode():
            return Evaluation.of(tested(x), y, self.federation.num_classes)

    def test_ranges(self) -> list[tuple[int, int]]:
        """Return the ranges that the test set is tested in, the same for any number of workers."""
        samples = len(self.federation.dataset.test)
        return [(start, start + TEST_BATCH) for start in range(0, samples, TEST_BATCH)]


def tested_model(base: SplitModel, model: SplitModel, tensors: Tensors) -> SplitModel:
    """Put tested tensors into the user's model or the method's, whichever has their names."""
    # A method's own head may have the names of the user's, and another meaning.
    tested = model if model.fits(tensors) else base
    tested.load(tensors)
    tested.eval()
    return tested


@contextmanager
def _withholding() -> Iterator[None]:
    """Tell what a shield refuses from what a method raises."""
    try:
        yield
    except FedtailError as error:
        raise Withheld(f"{type(error).__name__}: {error}") from error


@contextmanager
def numerics(threads: int) -> Iterator[None]:
    """Fix what changes bits: the number of threads, and the choice of kernels on a GPU."""
    before = (
        torch.get_num_threads(),
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
    )
    torch.set_num_threads(threads)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before[1:]
