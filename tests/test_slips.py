"""Slips of whoever writes a method or a callback are said in their words."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any, ClassVar

import pytest
import tiny
import torch
from torch import Tensor, nn

from fedtail import Callback, FedAvg, FedtailError, LocalRun, Payload, run
from fedtail.callbacks import read_records
from fedtail.folder import RunFolder
from fedtail.methods import ModelState
from fedtail.protocol import Exchange, Server, Task
from fedtail.reduce import Reduced

QUICK = {"local": tiny.quick()}


class Forgetful(FedAvg[ModelState]):
    """Its server half forgets to return."""

    def aggregate(self, s: ModelState, found: Reduced, server: Server) -> ModelState:
        super().aggregate(s, found, server)
        return None  # type: ignore[return-value]


class NoGenerator(FedAvg[ModelState]):
    """Its round yields nothing."""

    def round(self, s: ModelState, server: Server) -> Any:
        return s


class Elsewhere(FedAvg[ModelState]):
    """Asks a client that is not there."""

    stranger: ClassVar[Any] = 97

    def round(self, s: ModelState, server: Server) -> Exchange[ModelState]:
        found = yield [Task(self.stranger, "train", self.broadcast(s, server))]
        return self.aggregate(s, found, server)


class Below(Elsewhere):
    """The same, with a number from the end."""

    stranger: ClassVar[Any] = -1


class ByName(Elsewhere):
    """The same, with a name."""

    stranger: ClassVar[Any] = "0"


class Stubborn(Elsewhere):
    """The same, and catches what it is told of it."""

    def round(self, s: ModelState, server: Server) -> Exchange[ModelState]:
        try:
            return (yield from super().round(s, server))
        except TypeError:
            return s


class Single(FedAvg[ModelState]):
    """Yields a task that is in no list."""

    def round(self, s: ModelState, server: Server) -> Exchange[ModelState]:
        found = yield Task(0, "train", self.broadcast(s, server))  # type: ignore[misc]
        return self.aggregate(s, found, server)


class NoLoss(FedAvg[ModelState]):
    """Its loss forgets to return."""

    def batch_loss(self, run: LocalRun, x: Tensor, y: Tensor) -> Tensor:
        return None  # type: ignore[return-value]


class ManyLosses(FedAvg[ModelState]):
    """Its loss is that of each sample."""

    def batch_loss(self, run: LocalRun, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(run.model(x), y, reduction="none")


class Counting(FedAvg[ModelState]):
    """Keeps a number at the client, where tensors belong."""

    def reply(self, run: LocalRun) -> Payload:
        run.client.state["rounds"] = 3  # type: ignore[assignment]
        return super().reply(run)


class LoggingMany(FedAvg[ModelState]):
    """Logs several numbers as one."""

    def aggregate(self, s: ModelState, found: Reduced, server: Server) -> ModelState:
        server.log("norms", torch.ones(3))  # type: ignore[arg-type]
        return super().aggregate(s, found, server)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (Forgetful, "new state is None: is a 'return' missing"),
        (NoGenerator, "yields lists of tasks and returns a state; this is a ModelState"),
        (Elsewhere, "task 'train' is for client 97, and there is none"),
        (Stubborn, "task 'train' is for client 97, and there is none"),
        (Below, "task 'train' is for client -1, and there is none"),
        (ByName, "task 'train' is for client '0', and there is none"),
        (Single, "yields lists of tasks, not a Task"),
        (NoLoss, "loss of a batch is a NoneType: is a 'return' missing"),
        (ManyLosses, r"loss of a batch is one number, not a tensor of shape \(\d+,\)"),
        (Counting, r"client.state\['rounds'\] is a int, no tensor, after 'train'"),
        (LoggingMany, r"server.log\('norms', ...\) takes one number or text, not a Tensor"),
    ],
)
def test_a_slip_in_a_method_is_said_in_its_words(method: type[FedAvg[Any]], said: str) -> None:
    with pytest.raises(TypeError, match=said) as caught:
        run(tiny.experiment(method(**QUICK)))
    assert any(note.startswith("raised by the method: ") for note in caught.value.__notes__)


def test_a_wrong_task_is_raised_where_it_was_yielded() -> None:
    with pytest.raises(TypeError) as caught:
        run(tiny.experiment(Elsewhere(**QUICK)))
    assert traceback.extract_tb(caught.value.__traceback__)[-1].filename == __file__


def test_what_is_put_on_a_method_is_refused_with_where_it_belongs() -> None:
    said = r"no field 'count'.* in the server's state, or in client\.state"
    with pytest.raises(FedtailError, match=said):
        FedAvg().count = 1


@pytest.mark.parametrize("wrong", [[Callback], Callback(), [print], None])
def test_what_is_no_callback_is_refused_before_work(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(FedtailError, match=r"give a list of objects .* such as \[Mine\(\)\]"):
        run(tiny.experiment(), out=tmp_path / "run", callbacks=wrong)
    assert not (tmp_path / "run").exists()


def test_what_a_callback_does_to_a_record_changes_no_run(tmp_path: Path) -> None:
    class Tidying(Callback):
        def on_round(self, record: Any) -> None:
            record.pop("per_class")
            record["traffic"].clear()

    watched = run(tiny.experiment(), out=tmp_path / "watched", callbacks=[Tidying()])
    alone = run(tiny.experiment())
    said = read_records(RunFolder(tmp_path / "watched").metrics)
    assert said[-1]["per_class"] == alone.history[-1]["per_class"] == watched.metrics["per_class"]
    assert said[-1]["traffic"]


def test_a_function_that_is_called_almost_like_a_hook_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Misspelt(FedAvg[ModelState]):
        family: ClassVar[str] = "local regularisation"
        paper: ClassVar[str] = "none"

        def agregate(self, s: ModelState, found: Reduced, server: Server) -> ModelState:
            return s

        def shrunk(self, weight: Tensor) -> Tensor:  # a helper like no hook
            return weight / 2

    FedAvg.register("misspelt-hook")(Misspelt)
    try:
        (told,) = caplog.messages
    finally:
        del FedAvg.registry._classes["misspelt-hook"]
    assert told == "'agregate' of class Misspelt overrides nothing: is 'aggregate' meant?"
