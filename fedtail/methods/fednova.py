"""FedNova.

Wang, Liu, Liang, Joshi, Poor, "Tackling the Objective Inconsistency Problem in Heterogeneous
Federated Optimization", NeurIPS 2020.

Clients that do more local steps pull the average towards their own optimum. FedNova divides what a
client moved by how many steps that was, d_k = (w − w_k) / (η a_k), averages these directions, and
goes a common number of steps along: w ← w − τ_eff Σ p_k η d_k (Eq. 8).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Self

import torch
from pydantic import Field, model_validator

from fedtail.errors import FedtailError
from fedtail.forms import Form, Mean, Number
from fedtail.methods.base import Asks, Method
from fedtail.methods.fedavg import ModelState
from fedtail.methods.fedprox import FedProx
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Client, Payload, Server, Tensors
from fedtail.reduce import Reduced
from fedtail.training.effective_steps import effective_steps, only_sgd


@Method.register("fednova")
class FedNova(FedProx):
    """Averages directions, not distances, whatever number of steps each client did."""

    family: ClassVar[str] = "drift"
    paper: ClassVar[str] = (
        "Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated "
        "Optimization, NeurIPS 2020"
    )
    needs: ClassVar[tuple[str, ...]] = ("local SGD",)
    traffic: ClassVar[str] = "two numbers up"

    mu: float = Field(0.0, ge=0, description="μ of FedProx's term in the local loss")

    @model_validator(mode="after")
    def _linear(self) -> Self:
        only_sgd(self.name, self.local)
        if self.mu * self.local.lr >= 1:
            raise FedtailError(
                f"method.mu = {self.mu:g} is too large: from 1 / lr = {1 / self.local.lr:g} on, the"
                " pull of one step goes beyond the received model"
            )
        return self

    def asks(self) -> Asks:
        """Compute with how many steps clients did."""
        return (
            super().asks()._replace(numbers="its average rests on how many steps each client did")
        )

    def train_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare w_k, weighed by n_k / a_k, and what τ_eff and γ are sums of."""
        whole, share = super().train_form(task, model, classes), Mean(by="share")
        means = {f"model/{name}": share for name in model.parameter_names()}
        form = replace(whole, how={**whole.how, **means})
        return form.numbers(share=Number(low=0), work=Number(low=0))

    def a(self, steps: int, round: int, rounds: int) -> float:
        """‖a_k‖₁, what so many steps of a round amount to."""
        local, rate = self.local, self.local.rate(round, rounds)
        return effective_steps(steps, local.momentum, local.nesterov, rate * self.mu)

    def unit(self, round: int, rounds: int) -> float:
        """Return the a of fixed steps: with it as the unit, n_k / a_k is n_k for equal steps."""
        return self.a(self.local.steps or 1, round, rounds)

    def extras(self, client: Client, steps: int, tensors: Tensors, aux: Any) -> Payload:
        """Send n_k / a_k in units, and n_k a_k, beside w_k."""
        sent = super().extras(client, steps, tensors, aux)
        n, at = len(client.data), (client.round, client.rounds)
        a = self.a(steps, *at)
        # With a proximal term, the authors' τ_eff is the mean number of steps, not of a.
        taken = float(steps) if self.mu else a
        facts = {"share": n * (self.unit(*at) / a) if n else 0.0, "work": n * taken}
        return replace(sent, scalars={**sent.scalars, **facts})

    def aggregate(self, s: ModelState, found: Reduced, server: Server) -> ModelState:
        """w ← w + τ_eff Σ p_k (w_k − w) / a_k.

        That is γ of the way to m, with m = Σ (p_k / a_k) w_k / Σ (p_k / a_k) and
        γ = τ_eff Σ p_k / a_k: for equal steps the average of FedAvg, up to rounding.
        """
        n, mean = found.total("samples"), found["model"]
        if not n:
            return s
        tau = found.total("work") / n
        gamma = tau * found.total("share") / (n * self.unit(server.round, server.rounds))
        server.log("tau_eff", tau)
        server.log("gamma", gamma)
        for name in server.model.parameter_names():
            mean[name] = mean[name] if gamma == 1 else torch.lerp(s.model[name], mean[name], gamma)
        return self.server_step(s, mean, server)
