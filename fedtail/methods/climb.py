"""CLIMB.

Shen, Cervino, Hassani, Ribeiro, "An Agnostic Approach to Federated Learning with Class Imbalance",
ICLR 2022.

Minimise the mean of the clients' losses f_k under the constraint that none is worse than that mean
by more than ε. Its Lagrangian has a dual λ_k ≥ 0 a client. In a round the server averages with the
weights p_k (1 + λ_k − λ̄), then moves the duals by how much each constraint is violated:
λ_k ← [λ_k + η_D (f_k − f̄ − ε)]_+, with f_k the loss of the model that the client received. Clients
whose data the model serves badly, those with the rare classes, come to weigh more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from fedtail.forms import Form, Number
from fedtail.losses import LossContext
from fedtail.methods.base import Asks, Method
from fedtail.methods.fedavg import FedAvg, ModelState
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Client, Payload, Server, Tensors
from fedtail.reduce import Reduced
from fedtail.training.mean_loss import mean_loss

LOSSES = "it weighs clients by their own losses"


@dataclass(frozen=True)
class CLIMBState(ModelState):
    """What the server keeps.

    Attributes
    ----------
    duals
        λ_k by client id; who is not in it has 0.
    """

    duals: dict[str, float] = field(default_factory=dict)


@Method.register("climb")
class CLIMB(FedAvg[CLIMBState]):
    """Let clients that the model serves badly weigh more in the average."""

    family: ClassVar[str] = "aggregation weights"
    paper: ClassVar[str] = (
        "Shen et al., An Agnostic Approach to Federated Learning with Class Imbalance, ICLR 2022"
    )
    needs: ClassVar[tuple[str, ...]] = ("each client's loss",)
    traffic: ClassVar[str] = "one number up"

    dual_lr: float = Field(0.1, ge=0, description="η_D: step of the duals; 0 is FedAvg")
    epsilon: float = Field(
        0.1, ge=0, description="ε: by how much a client's loss may exceed the mean"
    )
    divide: bool = Field(
        False, description="divide the dual step by the number of all clients, as the code does"
    )
    cap: float | None = Field(None, gt=0, description="largest dual; the authors' code has 5")

    def new_state(self, tensors: dict[str, Tensor]) -> CLIMBState:
        """Return the state with all duals 0."""
        return CLIMBState(tensors)

    def aggregate(self, s: CLIMBState, found: Reduced, server: Server) -> CLIMBState:
        """Average by the present duals, then λ_k ← [λ_k + η_D (f_k − f̄ − ε)]_+."""
        averaged = super().aggregate(s, found.weighed(self.weights(s, found)), server)
        losses = {
            str(u.client): float(u.payload.scalars["loss"])
            for u in found.each
            if u.payload.scalars["samples"]
        }
        if not losses:
            return averaged
        mean = fmean(losses.values())
        step = self.dual_lr / (len(server.clients) if self.divide else 1)
        most = math.inf if self.cap is None else self.cap
        moved = {
            client: min(
                max(s.duals.get(client, 0.0) + step * (loss - mean - self.epsilon), 0.0), most
            )
            for client, loss in losses.items()
        }
        duals = {client: dual for client, dual in {**s.duals, **moved}.items() if dual}
        server.log("loss_mean", mean)
        server.log("loss_max", max(losses.values()))
        server.log("dual_max", max(duals.values(), default=0.0))
        server.log("constrained", len(duals))
        return replace(averaged, duals=duals)

    def weights(self, s: CLIMBState, found: Reduced) -> list[float]:
        """Return p_k (1 + λ_k − λ̄), none below 0, with λ̄ the mean over the updates."""
        p = [float(update.payload.scalars["samples"]) for update in found.each]
        duals = [s.duals.get(str(update.client), 0.0) for update in found.each]
        # A client without samples has no say, also not in the mean.
        mean = fmean([dual for dual, n in zip(duals, p, strict=True) if n] or [0.0])
        return [n * max(1 + dual - mean, 0.0) for n, dual in zip(p, duals, strict=True)]

    def asks(self) -> Asks:
        """Need every client's own loss."""
        return super().asks()._replace(single=LOSSES)

    def train_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare the model and f_k, of every client its own; a loss may be below 0."""
        return super().train_form(task, model, classes).numbers(loss=Number()).singly(LOSSES)

    def at_start(self, payload: Payload, client: Client, context: LossContext) -> float:
        """f_k: the loss of the received model."""
        return mean_loss(client.model, client.data, self.loss, context)

    def extras(self, client: Client, steps: int, tensors: Tensors, aux: float) -> Payload:
        """Send f_k too; the weights are the server's, so a sum by samples is not enough."""
        sent = super().extras(client, steps, tensors, aux)
        return Payload(sent.tensors, {**sent.scalars, "loss": aux})
