"""SCAFFOLD.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning", ICML 2020.

Every client keeps a control variate c_k, an estimate of its own gradient, and the server the mean c
of all of them. A local step takes g − c_k + c (Algorithm 1, line 10): what is peculiar to the
client is replaced by what is common to all, so that local steps do not drift apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedtail.forms import Form, Mean, Number, like
from fedtail.losses import LossContext
from fedtail.methods.base import Asks, Method
from fedtail.methods.fedavg import FedAvg, ModelState
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Client, Payload, Server, Tensors, grouped
from fedtail.reduce import Reduced
from fedtail.training.effective_steps import effective_steps, only_sgd


@dataclass(frozen=True)
class ScaffoldState(ModelState):
    """What the server keeps.

    Attributes
    ----------
    control
        c, one tensor for each trained parameter.
    """

    control: dict[str, Tensor] = field(default_factory=dict)


class Control(NamedTuple):
    """A client's control variates in one task.

    Attributes
    ----------
    start
        x, the received parameters.
    own
        c_k, zero before the client's first task.
    shift
        c − c_k, what is added to every gradient, on the client's device.
    """

    start: dict[str, Tensor]
    own: dict[str, Tensor]
    shift: dict[str, Tensor]


@Method.register("scaffold")
class Scaffold(FedAvg[ScaffoldState]):
    """Corrects every local step by the difference of the global and the client's own gradient."""

    family: ClassVar[str] = "drift"
    paper: ClassVar[str] = (
        "Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, "
        "ICML 2020"
    )
    needs: ClassVar[tuple[str, ...]] = ("clients that keep a state", "local SGD")
    traffic: ClassVar[str] = "the control variate, as large as the parameters, both ways"

    weighted: bool = Field(
        False,
        description="weigh clients by samples, in both means, as FedAvg does; the paper does not",
    )

    @model_validator(mode="after")
    def _linear(self) -> Self:
        only_sgd(self.name, self.local)
        return self

    # Server half

    def init(self, model: SplitModel, server: Server) -> ScaffoldState:
        """Start with c = 0."""
        control = {name: zeros_like(parameter) for name, parameter in model.trainable().items()}
        return ScaffoldState(model.tensors(), control=control)

    def broadcast(self, s: ScaffoldState, server: Server) -> Payload:
        """Send x and c."""
        sent = super().broadcast(s, server)
        return replace(sent, tensors={**sent.tensors, **grouped("control", s.control)})

    def aggregate(self, s: ScaffoldState, found: Reduced, server: Server) -> ScaffoldState:
        """x ← x + η_g mean(y_k − x), c ← c + (S/K) mean(c_k⁺ − c_k) (lines 16 and 17)."""
        change = found["control"]
        if not change:
            return s
        share = found.total("trained") / len(server.clients)
        control = {name: c + share * change[name] for name, c in s.control.items()}
        server.log("control_norm", norm(control))
        server.log("control_change", norm(change))
        return replace(super().aggregate(s, found, server), control=control)

    def asks(self) -> Asks:
        """Compute with how many clients had anything to train on."""
        return (
            super().asks()._replace(numbers="its control variate rests on how many clients trained")
        )

    # Client half

    def train_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare y and c_k⁺ − c_k, and whether there was anything to train on."""
        how = Mean() if self.weighted else Mean(by="")
        whole = super().train_form(task, model, classes)
        means = {n: how if isinstance(old, Mean) else old for n, old in whole.how.items()}
        control = like(model.trainable().items())
        trained = Number(0, 1, whole=True)
        return replace(whole, how=means).group("control", control, how).numbers(trained=trained)

    def at_start(self, payload: Payload, client: Client, context: LossContext) -> Control:
        """Take x and c from the message and c_k from the client's own state."""
        received, c = payload.group("model"), payload.group("control")
        start = {name: received[name] for name in c}
        own = {
            name: client.state.get(f"control/{name}", zeros_like(x)) for name, x in start.items()
        }
        shift = {name: (c[name] - own[name]).to(client.device) for name in c}
        return Control(start, own, shift)

    def adjust(self, gradients: Tensors, weights: Tensors, aux: Control) -> None:
        """g ← g − c_k + c, before clipping (line 10)."""
        for name, g in gradients.items():
            g.add_(aux.shift[name])

    def extras(self, client: Client, steps: int, tensors: Tensors, aux: Control) -> Payload:
        """c_k⁺ = c_k − c + (x − y) / (Q η) (line 12, option II); send c_k⁺ − c_k beside y.

        With momentum, Q is what FedNova puts in its place.
        """
        sent = super().extras(client, steps, tensors, aux)
        q = effective_steps(steps, self.local.momentum, self.local.nesterov)
        reach = q * self.local.rate(client.round, client.rounds)
        change = {name: zeros_like(x) for name, x in aux.start.items()}
        for name, x in aux.start.items() if reach else ():
            new = (x - tensors[name]) / reach - aux.shift[name].cpu()
            change[name] = new - aux.own[name]
            client.state[f"control/{name}"] = new
        return replace(
            sent,
            tensors=grouped("control", change),
            scalars={**sent.scalars, "trained": int(len(client.data) > 0)},
        )


def zeros_like(parameter: Tensor) -> Tensor:
    """Return zeros of the same shape and type, on the CPU."""
    return torch.zeros(parameter.shape, dtype=parameter.dtype)


def norm(tensors: Tensors) -> float:
    """Return the Euclidean norm of all numbers together, whatever the order of the names."""
    return math.sqrt(sum(float(tensors[name].double().square().sum()) for name in sorted(tensors)))
