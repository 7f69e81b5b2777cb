"""What the server makes of the clients' average: an optimiser whose gradient is −Δ.

Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification", arXiv:1909.06335, 2019 (momentum); Reddi, Charles, Zaheer, Garrett, Rush, Konečný,
Kumar, McMahan, "Adaptive Federated Optimization", ICLR 2021 (Adam, Yogi, Adagrad).

Δ = Σ p_k w_k − w is how far the average is from the old model w. Only parameters come here: to add
a multiple of Δ to a BatchNorm variance could make it negative, so buffers take the average itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedtail.config import Component, Registry
from fedtail.errors import FedtailError

OptimizerState = Mapping[str, Tensor]


class ServerOptimizer(Component):
    """From the old model and the clients' average to the new model, one parameter at a time."""

    registry: ClassVar[Registry[ServerOptimizer]] = Registry("server optimiser")

    def step(
        self, w: Tensor, mean: Tensor, memory: OptimizerState
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return one parameter's new value, and what is to be remembered of it.

        Parameters
        ----------
        w, mean
            Its old value; its average over the clients.
        memory
            What the last step returned for it; nothing before the first.
        """
        raise FedtailError(f"server optimiser '{self.name}' is abstract")


@ServerOptimizer.register("sgd")
class ServerSGD(ServerOptimizer):
    """v ← βv + Δ, w ← w + η v; the default is the average itself.

    Nesterov's form takes Δ + βv for v in the second, as `torch.optim.SGD` does.
    """

    lr: float = Field(1.0, gt=0, description="η: step from the old model towards the average")
    momentum: float = Field(0.0, ge=0, lt=1, description="β: share of the last step in the next")
    nesterov: bool = Field(False, description="Nesterov's form of momentum")

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.nesterov and not self.momentum:
            raise FedtailError("nesterov needs momentum above 0")
        return self

    def step(
        self, w: Tensor, mean: Tensor, memory: OptimizerState
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return w + η v and v."""
        if not self.momentum:
            # w + (mean − w) is not the mean to the last bit.
            return (mean if self.lr == 1 else torch.lerp(w, mean, self.lr)), {}
        delta = mean - w
        v = self.momentum * memory["v"] + delta if memory else delta
        return w + self.lr * (delta + self.momentum * v if self.nesterov else v), {"v": v}


class Adaptive(ServerOptimizer):
    """What Adam, Yogi and Adagrad share (Algorithm 2 of Reddi et al.).

    m ← β₁ m + (1 − β₁) Δ, v as the optimiser has it, w ← w + η m / (√v + τ).
    """

    lr: float = Field(0.03, gt=0, description="η: server rate; the paper tunes it for each task")
    beta1: float = Field(0.9, ge=0, lt=1, description="β₁: how slowly m forgets")
    tau: float = Field(1e-3, gt=0, description="τ: the larger, the less adaptive")

    def first_v(self) -> float:
        """Return v before the first step: τ², the least that Algorithm 2 allows."""
        return self.tau**2

    def next_v(self, v: Tensor, squared: Tensor) -> Tensor:
        """Return the new v from the old one and Δ²."""
        raise FedtailError(f"server optimiser '{self.name}' is abstract")

    def direction(self, m: Tensor, v: Tensor, t: Tensor) -> Tensor:
        """Return m / (√v + τ)."""
        return m / (v.sqrt() + self.tau)

    def step(
        self, w: Tensor, mean: Tensor, memory: OptimizerState
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return w + η m / (√v + τ), and m, v and the number of steps t."""
        delta = mean - w
        before = memory or {
            "m": torch.zeros_like(w),
            "v": torch.full_like(w, self.first_v()),
            "t": torch.zeros(()),
        }
        m = self.beta1 * before["m"] + (1 - self.beta1) * delta
        v = self.next_v(before["v"], delta.square())
        t = before["t"] + 1
        return w + self.lr * self.direction(m, v, t), {"m": m, "v": v, "t": t}


@ServerOptimizer.register("adagrad")
class ServerAdagrad(Adaptive):
    """v ← v + Δ²; Adagrad has no momentum unless it is given one."""

    beta1: float = Field(0.0, ge=0, lt=1, description="β₁: how slowly m forgets")

    def next_v(self, v: Tensor, squared: Tensor) -> Tensor:
        """Return v + Δ²."""
        return v + squared


@ServerOptimizer.register("adam")
class ServerAdam(Adaptive):
    """v ← β₂ v + (1 − β₂) Δ²."""

    beta2: float = Field(0.99, ge=0, lt=1, description="β₂: how slowly v forgets")
    bias_correction: bool = Field(
        False, description="begin with v = 0 and divide m and v by 1 − βᵗ, as torch's Adam does"
    )

    def first_v(self) -> float:
        """Return τ², or 0 if the bias of that is corrected."""
        return 0.0 if self.bias_correction else super().first_v()

    def next_v(self, v: Tensor, squared: Tensor) -> Tensor:
        """Return β₂ v + (1 − β₂) Δ²."""
        return self.beta2 * v + (1 - self.beta2) * squared

    def direction(self, m: Tensor, v: Tensor, t: Tensor) -> Tensor:
        """Return m / (√v + τ), of the corrected m and v if so wished."""
        if self.bias_correction:
            m, v = m / (1 - self.beta1**t), v / (1 - self.beta2**t)
        return super().direction(m, v, t)


@ServerOptimizer.register("yogi")
class ServerYogi(ServerAdam):
    """v ← v − (1 − β₂) Δ² sign(v − Δ²): v falls no faster than it rises."""

    def next_v(self, v: Tensor, squared: Tensor) -> Tensor:
        """Return v − (1 − β₂) Δ² sign(v − Δ²)."""
        return v - (1 - self.beta2) * squared * torch.sign(v - squared)
