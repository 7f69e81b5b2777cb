"""FedAvgM, FedAdagrad, FedAdam, FedYogi: FedAvg with an optimiser on the server.

Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification", arXiv:1909.06335, 2019: FedAvgM.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, "Adaptive Federated Optimization",
ICLR 2021 (Algorithm 2): the other three.

The way to the average, Δ = Σ p_k w_k − w, is taken for a gradient:

- FedAvgM: v ← βv + Δ, w ← w + η v.
- FedAdagrad: m ← β₁m + (1 − β₁)Δ, v ← v + Δ², w ← w + η m / (√v + τ), so that a parameter's steps
  shrink with all that it has moved.
- FedAdam: v ← β₂v + (1 − β₂)Δ² instead, without bias correction.
- FedYogi: v ← v − (1 − β₂)Δ² sign(v − Δ²), which falls more slowly after a large Δ.

Each is the default of one field and nothing else: every other method can use the optimisers too.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedtail.methods.base import Method
from fedtail.methods.fedavg import FedAvg, ModelState
from fedtail.training import ServerAdagrad, ServerAdam, ServerOptimizer, ServerSGD, ServerYogi


@Method.register("fedavgm")
class FedAvgM(FedAvg[ModelState]):
    """FedAvg with momentum on the server."""

    family: ClassVar[str] = "server optimiser"
    paper: ClassVar[str] = (
        "Hsu et al., Measuring the Effects of Non-Identical Data Distribution for Federated Visual "
        "Classification, arXiv:1909.06335, 2019"
    )

    server_optimizer: ServerOptimizer = Field(
        ServerSGD(momentum=0.9), description="what the server makes of the average"
    )


@Method.register("fedadagrad")
class FedAdagrad(FedAvg[ModelState]):
    """FedAvg with Adagrad on the server."""

    family: ClassVar[str] = "server optimiser"
    paper: ClassVar[str] = "Reddi et al., Adaptive Federated Optimization, ICLR 2021"

    server_optimizer: ServerOptimizer = Field(
        ServerAdagrad(), description="what the server makes of the average"
    )


@Method.register("fedadam")
class FedAdam(FedAvg[ModelState]):
    """FedAvg with Adam on the server."""

    family: ClassVar[str] = "server optimiser"
    paper: ClassVar[str] = "Reddi et al., Adaptive Federated Optimization, ICLR 2021"

    server_optimizer: ServerOptimizer = Field(
        ServerAdam(), description="what the server makes of the average"
    )


@Method.register("fedyogi")
class FedYogi(FedAvg[ModelState]):
    """FedAvg with Yogi on the server."""

    family: ClassVar[str] = "server optimiser"
    paper: ClassVar[str] = "Reddi et al., Adaptive Federated Optimization, ICLR 2021"

    server_optimizer: ServerOptimizer = Field(
        ServerYogi(), description="what the server makes of the average"
    )
