"""Each check fails for a method that breaks the one promise, and says so."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from pydantic import Field, field_validator

from fedtail import (
    Client,
    FedAvg,
    FedtailError,
    Method,
    ModelState,
    Payload,
    Reduced,
    Server,
    SplitModel,
    Task,
    action,
)
from fedtail.forms import Form
from fedtail.protocol import Exchange
from fedtail.testing import CHECKS, Case, CheckFailed, Outcome, check_method, outcome_of, outcomes
from fedtail.testing.federation import BARE, MODELS

Base = FedAvg[ModelState]


class Undocumented(Base):
    pass


Undocumented.__doc__ = ""


class Vague(Base):
    """A field that nobody explains."""

    factor: float = Field(1.0, ge=0)


class Boundless(Base):
    """A number that may be anything."""

    factor: float = Field(1.0, description="something")


class Clamping(Base):
    """Takes a wrong number for the nearest right one."""

    factor: float = Field(1.0, ge=0, description="something")

    @field_validator("factor", mode="before")
    @classmethod
    def _clamped(cls, value: Any) -> Any:
        return max(value, 0)


class Lenient(Base):
    """Takes every field that it is given."""

    @classmethod
    def _completed(cls, value: Any) -> Any:
        return {k: v for k, v in value.items() if k in cls.model_fields}


class Changing(Base):
    """Writes another number than it has."""

    factor: float = Field(1.0, ge=0, description="something")

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "factor": self.factor + 1}


class Formless(Base):
    """An action without a form."""

    @action
    def greet(self, payload: Payload, client: Client) -> Payload:
        return Payload()


class Diverging(Base):
    """Ships NaN."""

    def eval_model(self, s: ModelState) -> dict[str, torch.Tensor]:
        return {name: t * torch.nan for name, t in s.model.items()}


class Dicing(Base):
    """Draws from Python's stream, which nobody has seeded."""

    def eval_model(self, s: ModelState) -> dict[str, torch.Tensor]:
        return {name: t * random.random() for name, t in s.model.items()}


class Constant(Base):
    """Ships the same model, whatever the seed."""

    def eval_model(self, s: ModelState) -> dict[str, torch.Tensor]:
        return {name: torch.ones_like(t) for name, t in s.model.items()}


class Residual(Base):
    """Trains on with whatever model the last client left."""

    def load(self, payload: Payload, client: Client) -> None:
        if client.round == 1:
            super().load(payload, client)


class Remembering(Base):
    """Counts rounds outside of the state."""

    seen: ClassVar[list[int]] = []

    def init(self, model: SplitModel, server: Server) -> ModelState:
        self.seen.clear()
        return super().init(model, server)

    def aggregate(self, s: ModelState, found: Reduced, server: Server) -> ModelState:
        new = super().aggregate(s, found, server)
        self.seen.append(server.round)
        return replace(new, model={n: t * len(self.seen) for n, t in new.model.items()})


class Counting(Base):
    """Takes for granted that client 0 answers."""

    def aggregate(self, s: ModelState, found: Reduced, server: Server) -> ModelState:
        if 0 in server.cohort() and found.clients[0] != 0:
            raise ValueError("where is client 0?")
        return super().aggregate(s, found, server)


class Hasty(Base):
    """Takes for granted that every round leaves a memory."""

    def broadcast(self, s: ModelState, server: Server) -> Payload:
        if s.prior is not None and int(s.prior) != server.round - 1:
            raise ValueError("a round is missing")
        return super().broadcast(replace(s, prior=None), server)

    def aggregate(self, s: ModelState, found: Reduced, server: Server) -> ModelState:
        new = super().aggregate(s, found, server)
        return replace(new, prior=torch.tensor(server.round))

    def context(self, payload: Payload, client: Client) -> Any:
        return super().context(Payload(), client)


class Impersonal(Base):
    """Promises own models, and gives no tasks."""

    def personal(self, s: ModelState, server: Server) -> list[Task]:
        return []


class Blind(Base):
    """Has an action of that name already, which looks at nothing that is held out."""

    @action
    def assess(self, payload: Payload, client: Client) -> Payload:
        sent = super().assess(payload, client)
        return replace(sent, tensors={n: torch.zeros_like(t) for n, t in sent.tensors.items()})


class Renaming(Base):
    """Ships tensors under names of nobody."""

    def eval_model(self, s: ModelState) -> dict[str, torch.Tensor]:
        return {f"x.{name}": t for name, t in s.model.items()}


class Precise(Base):
    """Sends float64."""

    def broadcast(self, s: ModelState, server: Server) -> Payload:
        sent = super().broadcast(s, server)
        return replace(sent, tensors={n: t.double() for n, t in sent.tensors.items()})


class Ungrouped(Base):
    """Sends a tensor without a group."""

    def broadcast(self, s: ModelState, server: Server) -> Payload:
        sent = super().broadcast(s, server)
        return replace(sent, tensors={**sent.tensors, "alone": torch.ones(1)})


class Discreet(Base):
    """Reads single updates and says nothing of it."""

    def train_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        return super().train_form(task, model, classes).singly("it looks at each")


class Favouring(Base):
    """Draws clients in a way of its own and says nothing of it."""

    def round(self, s: ModelState, server: Server) -> Exchange[ModelState]:
        payload = self.broadcast(s, server)
        found = yield [Task(client, "train", payload) for client in list(server.clients)[:4]]
        return self.aggregate(s, found, server)


class Curious(Base):
    """Asks once more after training and says nothing of it."""

    def finalize(self, s: ModelState, server: Server) -> Exchange[ModelState]:
        yield [Task(client, "train", self.broadcast(s, server)) for client in server.clients]
        return s


BROKEN = [
    (Undocumented, "says_what_it_is", "no docstring"),
    (Vague, "says_what_it_is", "without a description: factor"),
    (Boundless, "every_number_has_a_bound", "'factor' has no bound"),
    (Clamping, "a_value_out_of_range_is_refused", "factor = -1"),
    (Lenient, "an_unknown_key_is_refused", "'no_such_field' is not refused"),
    (Changing, "a_description_rebuilds_it", "is read as"),
    (Formless, "every_action_has_a_form", "action 'greet' has no 'greet_form"),
    (Diverging, "a_run_comes_to_its_end", "holds NaN or infinity"),
    (Dicing, "the_same_seed_gives_the_same_bits", "other bits in"),
    (Dicing, "the_streams_of_the_user_are_not_touched", "Python's global stream was used"),
    (Constant, "another_seed_gives_others", "seeds 0 and 1 give the same model"),
    (Residual, "separate_copies_give_the_same_bits", "other bits in"),
    (Remembering, "a_resumed_run_gives_the_same_bits", "other bits in"),
    (Counting, "a_client_that_is_dropped_does_not_break_the_round", "where is client 0?"),
    (Hasty, "a_round_in_which_nobody_answers_keeps_the_model", "a round is missing"),
    (Impersonal, "clients_own_models_are_tested", "'personal' gives no tasks"),
    (Blind, "what_is_held_out_is_counted", "0 of "),
    (Renaming, "what_is_shipped_loads", "do not match"),
    (Precise, "floats_on_the_wire_are_float32_on_the_cpu", "is torch.float64"),
    (Ungrouped, "names_have_a_group", "'alone' has no group"),
    (Discreet, "asks_what_it_says", "'train' is read singly, asks().single is ''"),
    (Favouring, "asks_what_it_says", "round 1 does not ask its cohort, asks().round is 'cohort'"),
    (Curious, "asks_what_it_says", "'train' is asked after training, asks().after is False"),
]


@pytest.fixture(autouse=True)
def registry_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(Method.registry, "_classes", dict(Method.registry._classes))
    yield


def entered(cls: type[Base]) -> type[Base]:
    return Method.register(cls.__name__.lower())(cls)


def tried(cls: type[Base], name: str) -> list[Outcome]:
    (check,) = [check for check in CHECKS if check.name == name]
    case = Case(entered(cls))
    return [outcome_of(check, case.on(model)) for model in check.models]


@pytest.mark.parametrize(
    ("cls", "check", "sentence"), BROKEN, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_broken_promise_is_found(cls: type[Base], check: str, sentence: str) -> None:
    failed = [outcome for outcome in tried(cls, check) if outcome.kept == "no"]
    assert failed
    assert sentence in failed[0].sentence


def test_what_is_not_tried_here_is_little() -> None:
    # What engines do themselves, or refuse before a check could see it, and worker processes.
    engines = {"traffic_is_counted", "all_clients_send_the_same_names"}
    broken = {check for _, check, _ in BROKEN}
    assert {c.name for c in CHECKS} - broken == engines | {"worker_processes_give_the_same_bits"}


def test_every_failure_is_in_the_one_error() -> None:
    class Twice(Boundless):
        """Two mistakes."""

        other: int = Field(1, ge=0)

    with pytest.raises(CheckFailed) as failed:
        check_method(entered(Twice))
    assert str(failed.value).splitlines() == [
        "says_what_it_is (plain): without a description: other",
        "every_number_has_a_bound (plain): 'factor' has no bound: Field(..., ge=0), for example",
    ]


def test_a_method_that_cannot_run_is_told_once_a_model() -> None:
    class Crashing(Base):
        """Fails at once."""

        def init(self, model: SplitModel, server: Server) -> ModelState:
            raise ZeroDivisionError("nothing to divide by")

    found = [o for o in outcomes(Case(entered(Crashing))) if o.kept == "no"]
    runs = [o for o in found if o.check == "a_run_comes_to_its_end"]
    assert [o.model for o in runs] == list(MODELS)
    assert all("ZeroDivisionError: nothing to divide by (test_checks.py, line" in o.sentence
               for o in runs)  # fmt: skip
    assert {o.check for o in found} == {"a_run_comes_to_its_end", "every_action_has_a_form"}


class Choosy(Base):
    """Trains no bare classifier."""

    def build_model(self, base: SplitModel) -> SplitModel:
        if isinstance(base.module, torch.nn.Linear):
            raise FedtailError("give something before the classifier")
        return base


def test_a_model_may_be_refused_but_not_every_model() -> None:
    found = check_method(entered(Choosy))
    assert [(o.model, o.sentence) for o in found if o.kept == "refused"] == [
        (BARE, "give something before the classifier")
    ]
    assert all(o.model != BARE for o in found if o.kept == "yes")

    class Refusing(Base):
        """Trains nothing."""

        def build_model(self, base: SplitModel) -> SplitModel:
            raise FedtailError("not this one")

    with pytest.raises(CheckFailed, match="refuses every model: not this one"):
        check_method(entered(Refusing))


def test_a_class_without_a_name_of_its_own_is_refused() -> None:
    with pytest.raises(FedtailError, match="class 'Vague' is not registered"):
        check_method(Vague)
