"""FedNova.

Wang, Liu, Liang, Joshi, Poor, "Tackling the Objective Inconsistency Problem in Heterogeneous
Federated Optimization", NeurIPS 2020.

Clients that do more local steps pull the average towards their own optimum. FedNova divides what a
client moved by how many steps that was, d_k = (w − w_k) / (η a_k), averages these directions, and
goes a common number of steps along: w ← w − τ_eff Σ p_k η d_k (Eq. 8).
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Self

import torch
from pydantic import Field, model_validator

from fedtail.errors import FedtailError
from fedtail.forms import Form, Number
from fedtail.methods.base import Method
from fedtail.methods.fedavg import LocalRun, ModelState
from fedtail.methods.fedprox import FedProx
from fedtail.models.split import SplitModel
from fedtail.protocol import Payload, Server, Update
from fedtail.training import weighted_mean
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
    traffic: ClassVar[str] = "one number up"

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

    def not_a_sum(self) -> str:
        """Need every client's own number of steps."""
        return "it weighs clients by their own numbers of steps"

    def train_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare w_k and a_k."""
        return super().train_form(task, model, classes).numbers(a=Number(low=0))

    def reply(self, run: LocalRun) -> Payload:
        """Send w_k and a_k = ‖a_k‖₁."""
        sent = super().reply(run)
        local, rate = self.local, self.local.rate(run.client.round, run.client.rounds)
        a = effective_steps(run.steps, local.momentum, local.nesterov, rate * self.mu)
        # n_k / a_k, not n_k, is what a client weighs: its model cannot be summed unseen.
        return replace(sent, scalars={**sent.scalars, "a": a}, summable=frozenset())

    def aggregate(self, s: ModelState, updates: list[Update], server: Server) -> ModelState:
        """W ← w + τ_eff Σ p_k (w_k − w) / a_k.

        That is γ of the way to m, with m = Σ (p_k / a_k) w_k / Σ (p_k / a_k) and
        γ = τ_eff Σ p_k / a_k: for equal a_k the average of FedAvg, to the last bit.
        """
        n = self.weights(s, updates, server)
        a = [float(update.payload.scalars["a"]) for update in updates]
        if not sum(n):
            return s
        # A client without samples did no steps and weighs nothing; the unit of a is arbitrary.
        unit = max(a)
        weights = [n_k * (unit / a_k) if n_k else 0.0 for n_k, a_k in zip(n, a, strict=True)]
        # With a proximal term, the authors' τ_eff is the mean number of steps, not of a.
        taken = [float(u.payload.scalars["steps"]) for u in updates] if self.mu else a
        tau = sum(n_k * (t_k / unit) for n_k, t_k in zip(n, taken, strict=True))
        gamma = tau * sum(weights) / (sum(n) * sum(n))
        server.log("tau_eff", tau * unit / sum(n))
        server.log("gamma", gamma)
        mean = self.average(updates, n, server)
        models = [update.payload.group("model") for update in updates]
        m = weighted_mean(models, weights)
        for name in server.model.parameter_names():
            mean[name] = m[name] if gamma == 1 else torch.lerp(s.model[name], m[name], gamma)
        return self.server_step(s, mean, server)
