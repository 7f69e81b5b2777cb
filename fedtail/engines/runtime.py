"""Where tasks are done: the shared data and one resident model, in this process or in a worker."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from fedtail.allocator import keep_freed_memory
from fedtail.data.federation import Federation
from fedtail.errors import FedtailError
from fedtail.forms import Form, defect
from fedtail.methods.base import Method
from fedtail.metrics import Evaluation
from fedtail.models.split_model import SplitModel, load_tested
from fedtail.protocol import Client, ClientId, Payload, Task, Tensors
from fedtail.rng import contained, derive
from fedtail.standardise import without_constants

TEST_BATCH = 500
Phase = Literal["training", "after", "test"]
"""The exchanges of a round, those after training, and the test of the clients' own models."""
FIRST_TURN: dict[Phase, int] = {"training": 0, "after": 1_000_000, "test": 2_000_000}
"""Where the turns of a phase begin, for seeds: no round has so many.

What comes after training then draws the same numbers in a test, at the end of the run, and when a
run is resumed that had only its end left to do.
"""


class Withheld(FedtailError):
    """An answer that its client's side of a protection does not let out."""


@dataclass(frozen=True)
class Clock:
    """When a task happens: round, phase, and how many tasks its client did in these before."""

    round: int
    rounds: int
    turn: int = 0
    phase: Phase = "training"


class ClientSide(Protocol):
    """The clients' half of a protection of updates (`fedtail.privacy`)."""

    @property
    def actions(self) -> frozenset[str]:
        """What a client can be asked that no method asks."""

    def form(self, declared: Form, sent: Payload) -> Form:
        """Return what leaves a client in place of what a method declares of a task."""

    def protected(self, answer: Payload, declared: Form, task: Task, client: Client) -> Payload:
        """Return an update as it may leave the client."""

    def perform(self, task: Task) -> Payload:
        """Do a task that is no method's own."""


@dataclass
class Runtime:
    """Does tasks one after the other. What it gives depends on the task alone.

    Attributes
    ----------
    base, model
        The user's model, and the one that the method trains (often the same).
    client_side
        What protects updates before they leave, if anything does.
    together
        How many clients train as one computation at most; below 2, each alone.
    """

    federation: Federation
    method: Method[Any]
    base: SplitModel
    model: SplitModel
    seed: int
    device: torch.device
    client_side: ClientSide | None = None
    together: int = 0

    def perform(self, task: Task, state: MutableMapping[str, Tensor], clock: Clock) -> Payload:
        """Do one task for one client; `state` is changed in place."""
        side = self.client_side
        if side is not None and task.action in side.actions:
            with _withholding():
                return side.perform(task)
        if task.action not in self.method.actions():
            raise FedtailError(f"method '{self.method.name}' has no client action '{task.action}'")
        turn = FIRST_TURN[clock.phase] + clock.turn
        payload, told = without_constants(task.payload)
        client = self.client(task.client, told, state, clock)
        # Dropout draws from torch's global stream; see `contained`.
        stream = derive(self.seed, f"stream/{task.action}/{turn}", clock.round, task.client)
        with contained(stream, self.device):
            answer = getattr(self.method, task.action)(payload, client)
        if not isinstance(answer, Payload):
            kind = type(answer).__name__
            raise TypeError(f"'{task.action}' of '{self.method.name}' returns {kind}, no Payload")
        for name, kept in state.items():
            if not isinstance(kept, Tensor):
                kind = type(kept).__name__
                raise TypeError(
                    f"client.state[{name!r}] is a {kind}, no tensor, after '{task.action}'"
                )
        if side is None or clock.phase == "test":
            return answer
        declared = self.declared(task)
        # Nobody can look at it later, and what is wrong with it is told to the server.
        reason = defect(answer, declared, self.federation.size(client.id), quoted=False)
        if reason:
            raise Withheld(reason)
        with _withholding():
            return side.protected(answer, declared, task, client)

    def client(
        self, k: ClientId, told: Tensors, state: MutableMapping[str, Tensor], clock: Clock
    ) -> Client:
        """Return what the client half may use in one task, told what inputs are normalised with."""
        data = self.federation.client(k, told)
        return Client(
            id=k,
            data=data,
            counts=torch.bincount(data.labels, minlength=self.federation.num_classes),
            model=self.model,
            state=state,
            round=clock.round,
            rounds=clock.rounds,
            turn=FIRST_TURN[clock.phase] + clock.turn,
            seed=self.seed,
            device=self.device,
            base=self.base,
            classes=self.federation.dataset.classes,
        )

    def form(self, task: Task, phase: Phase = "training") -> Form:
        """Return what leaves a client that is given a task."""
        declared = self.declared(task)
        if self.client_side is None or phase == "test":
            return declared
        return self.client_side.form(declared, task.payload)

    def declared(self, task: Task) -> Form:
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
        return load_tested(tensors, self.model, self.base)

    def evaluate(self, tested: SplitModel, start: int, stop: int) -> Evaluation:
        """Test a loaded model on one range of the test set."""
        held = self.federation
        x, y = held.test_batch(start, stop)
        owner = None if held.test_owner is None else held.test_owner[start:stop]
        owners = len(held.dataset.client_names)
        with torch.inference_mode():
            return Evaluation.of(tested(x), y, held.num_classes, owner, owners)

    def test_ranges(self) -> list[tuple[int, int]]:
        """Return the ranges that the test set is tested in, the same for any number of workers."""
        samples = len(self.federation.dataset.test)
        return [(start, start + TEST_BATCH) for start in range(0, samples, TEST_BATCH)]


@contextmanager
def _withholding() -> Iterator[None]:
    """Tell what a protection refuses from what a method raises."""
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
    keep_freed_memory()  # which changes no bits, and is for whoever computes, too
    torch.set_num_threads(threads)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before[1:]
