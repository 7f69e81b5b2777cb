"""Methods that do what a client half may do wrong. Worker processes import this module."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import tiny
import torch
from torch import Tensor, nn

from fedtail import Client, FedAvg, FedtailError, Payload, action
from fedtail.forms import COUNT, Form, Like
from fedtail.methods import ModelState
from fedtail.models import SplitModel


class Remembering(FedAvg[ModelState]):
    """Keeps how often each client was asked, and what it drew."""

    @action
    def ask(self, payload: Payload, client: Client) -> Payload:
        count = client.state.get("count", torch.zeros(1)) + 1
        drawn = torch.rand(3, generator=client.generator("draw"))
        client.state["count"] = count
        return Payload(
            {"count": count, "drawn": drawn, "stream": torch.rand(3)}, {"turn": client.turn}
        )

    def ask_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        looks = {"count": Like((1,)), "drawn": Like((3,)), "stream": Like((3,))}
        return Form(looks).numbers(turn=COUNT).singly("the test looks at each")

    @action
    def forget(self, payload: Payload, client: Client) -> Payload:
        client.state.clear()
        return Payload()

    def forget_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        return Form()

    def unmarked(self, payload: Payload, client: Client) -> Payload:
        return Payload()


class One(FedAvg[ModelState]):
    """Answers with one number."""

    def ask_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        return Form({"x": Like((1,))}).singly("the test looks at each")


class Raising(One):
    """Client 1 fails after it has touched its state."""

    @action
    def ask(self, payload: Payload, client: Client) -> Payload:
        client.state["seen"] = torch.tensor([float(client.round)])
        if client.id == 1 and client.round == 2:
            raise ValueError("out of luck")
        return Payload({"x": torch.ones(1)})


class Poisoned(One):
    """Client 1 sends NaN in round 2."""

    @action
    def ask(self, payload: Payload, client: Client) -> Payload:
        client.state["seen"] = torch.tensor([float(client.round)])
        bad = client.id == 1 and client.round == 2
        return Payload({"x": torch.full((1,), float("nan") if bad else 1.0)})


class Dying(FedAvg[ModelState]):
    """Client 3 is killed, or hangs, the first so many times; a folder keeps how often it was."""

    marks: str = ""
    times: int = 1
    hangs: bool = False

    def prepare(self, run: Any) -> Any:
        marks = Path(self.marks)
        if run.client.id == 3 and len(list(marks.iterdir())) < self.times:
            (marks / str(os.getpid())).touch()
            if self.hangs:
                time.sleep(600)
            os.kill(os.getpid(), signal.SIGKILL)


class Mistyped(FedAvg[ModelState]):
    """Client 2 runs into a typo in its half."""

    def prepare(self, run: Any) -> Any:
        if run.client.id == 2:
            return mispelled  # type: ignore[name-defined] # noqa: F821
        return None


class Refusing(FedAvg[ModelState]):
    """The client half is used wrongly, and says so."""

    def prepare(self, run: Any) -> Any:
        raise FedtailError("this method needs a linear classifier")


class Unsendable(One):
    """Client 1 sends a scalar that no message can carry."""

    @action
    def ask(self, payload: Payload, client: Client) -> Payload:
        odd: Any = threading.Lock()
        return Payload({"x": torch.ones(1)}, {"odd": odd} if client.id == 1 else {})


class Brittle(nn.Sequential):
    """A network that cannot be tested."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training and len(x) > 2:  # two samples are what every network is tried on
            raise ArithmeticError("too many")
        for layer in self:
            x = layer(x)
        return x


def brittle_model() -> nn.Module:
    return Brittle(*tiny.plain_model().children())
