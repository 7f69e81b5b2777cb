"""Fed-GraB.

Xiao, Chen, Liu, Wang, Feng, Hao, Zhou, Wu, Yang, Liu, "Fed-GraB: Federated Long-tailed Learning
with Self-Adjusting Gradient Balancer", NeurIPS 2023.

FedAvg with a sigmoid for each class, of which a client watches what pulls the logit up (samples of
the class) and what pushes it down (all others). A controller for each class, which the client keeps
from round to round, weighs the two so that their accumulated difference goes to zero. Classes are
controlled that the global model takes for rare: those whose classifier rows are shorter than the
mean after a warm-up without controllers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedtail.losses import BinaryCrossEntropy, LocalLoss
from fedtail.losses.binary_cross_entropy import binary_losses, is_class
from fedtail.methods.base import Method
from fedtail.methods.fedavg import FedAvg, LocalRun, ModelState
from fedtail.models.heads import refuse_frozen
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Exchange, Payload, Server, Tensors, grouped
from fedtail.training.classifier import second_stage
from fedtail.training.proxy import mean_head


@dataclass
class GradientBalancer:
    """One client's controllers (SGB), class by class.

    Attributes
    ----------
    delta
        Δ_c, what pulled logit c up so far less what pushed it down.
    out
        What the controller of each class says.
    last, before
        −Δ_c at the last batch, and at the one before.
    active
        Which classes are controlled.
    """

    delta: Tensor
    out: Tensor
    last: Tensor
    before: Tensor
    active: Tensor

    def weights(self, kp: float, ki: float, kd: float) -> tuple[Tensor, Tensor]:
        """Do a step of the controllers, and return what pulls and what pushes weigh."""
        e = -self.delta
        step = kp * (e - self.last) + ki * e + kd * (e - 2 * self.last + self.before)
        self.out = torch.where(self.active, self.out + step, 0.0)
        # A controller that is switched on later finds all that was added up until then.
        self.last, self.before = torch.where(self.active, e, 0.0), self.last
        return pull_of(self.out), pull_of(-self.out)

    def note(self, gradients: Tensor, own: Tensor) -> None:
        """Add up the (weighted) gradients of the logits of one batch."""
        size = gradients.abs()
        self.delta = self.delta + torch.where(own, size, -size).sum(dim=0)


@dataclass(frozen=True)
class FedGraBState(ModelState):
    """What the server keeps.

    Attributes
    ----------
    tail
        1 for every class that is controlled, else 0; nothing before the warm-up is over.
    """

    tail: Tensor | None = None


@Method.register("fed-grab")
class FedGraB(FedAvg[FedGraBState]):
    """Weighs what pulls a class up and what pushes it down, by a controller for each class."""

    family: ClassVar[str] = "local re-balancing"
    paper: ClassVar[str] = (
        "Xiao et al., Fed-GraB: Federated Long-tailed Learning with Self-Adjusting Gradient "
        "Balancer, NeurIPS 2023"
    )
    needs: ClassVar[tuple[str, ...]] = ("clients that keep a state",)
    traffic: ClassVar[str] = "down one number for each class"

    loss: LocalLoss = Field(
        BinaryCrossEntropy(), description="of clients without a controller: the method's own"
    )
    control: Literal["tail", "all", "none"] = Field(
        "tail",
        description="classes that are controlled: with rows shorter than the mean (DPA); all of "
        "them (code); or none, which is FedAvg with the loss",
    )
    warm_up: float = Field(
        0.5,
        ge=0,
        lt=1,
        description="share of the rounds in which differences are added up and not yet controlled",
    )
    kp: float = Field(10.0, ge=0, description="K_p: weight of the difference itself")
    ki: float = Field(0.01, ge=0, description="K_i: weight of its sum over batches")
    kd: float = Field(0.1, ge=0, description="K_d: weight of its change")

    def build_model(self, base: SplitModel) -> SplitModel:
        """Refuse heads with a frozen weight, whose rows tell nothing of frequencies."""
        for head in base.heads if self.control == "tail" else ():
            refuse_frozen(head, ["weight"])
        return base

    # Server half

    def new_state(self, tensors: dict[str, Tensor]) -> FedGraBState:
        """Begin without controlled classes."""
        return FedGraBState(tensors)

    def round(self, s: FedGraBState, server: Server) -> Exchange[FedGraBState]:
        """Say once, after the warm-up, which classes are controlled."""
        begun = not self.warm_up or second_stage(server.round, server.rounds, self.warm_up)
        if s.tail is None and begun and self.control != "none":
            server.model.load(s.model)
            tail = torch.ones(server.num_classes)
            if self.control == "tail":
                tail = rare_rows(mean_head(server.model)).float()
            server.log("controlled", int(tail.sum()))
            s = replace(s, tail=tail)
        return (yield from super().round(s, server))

    def broadcast(self, s: FedGraBState, server: Server) -> Payload:
        """Send which classes are controlled, if any."""
        sent = super().broadcast(s, server)
        told = {} if s.tail is None else {"tail/classes": s.tail}
        return replace(sent, tensors={**sent.tensors, **told})

    # Client half

    def prepare(self, run: LocalRun) -> GradientBalancer | None:
        """Take up the controllers where the client left them."""
        if self.control == "none":
            return None
        kept, device = Payload(dict(run.client.state)).group("balancer"), run.client.device
        zero = torch.zeros(run.client.num_classes)
        delta, out, last, before = (
            kept.get(n, zero).to(device) for n in ("delta", "out", "last", "before")
        )
        tail = run.payload.tensors.get("tail/classes", zero)
        return GradientBalancer(delta, out, last, before, active=tail.to(device) > 0)

    def batch_loss(self, run: LocalRun, x: Tensor, y: Tensor) -> Tensor:
        """Return the sum over classes of the weighted binary losses, the mean over the batch."""
        balancer: GradientBalancer | None = run.aux
        if balancer is None:
            return super().batch_loss(run, x, y)
        z = run.model(x)
        own = is_class(y, z.shape[1])
        pull, push = balancer.weights(self.kp, self.ki, self.kd)
        weights = torch.where(own, pull, push)
        # With constant weights, this is what multiplying the gradients of the logits does.
        balancer.note(weights * (z.detach().sigmoid() - own.to(z.dtype)) / len(y), own)
        return (weights * binary_losses(z, y)).sum(dim=1).mean()

    def reply(self, run: LocalRun) -> Payload:
        """Keep the controllers, and send the model."""
        if run.aux is not None:
            run.client.state.update(grouped("balancer", kept_numbers(run.aux)))
        return super().reply(run)


def pull_of(out: Tensor) -> Tensor:
    """Return (10/9) / (1/9 + e^(−x/2)): 1 at 0, from 0 to 10."""
    found: Tensor = (10 / 9) / (1 / 9 + torch.exp(-out / 2))
    return found


def rare_rows(weight: Tensor) -> Tensor:
    """Return which classes have shorter rows than the mean: what the direct prior takes for rare.

    Parameters
    ----------
    weight
        The classifier, (classes, features).
    """
    lengths: Tensor = weight.norm(dim=1)
    return lengths < lengths.mean()


def kept_numbers(balancer: GradientBalancer) -> Tensors:
    """Return what a client keeps of its controllers."""
    named = {n: getattr(balancer, n) for n in ("delta", "out", "last", "before")}
    return {name: tensor.cpu() for name, tensor in named.items()}
