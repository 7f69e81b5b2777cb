"""FedAdam.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, "Adaptive Federated Optimization",
ICLR 2021.

FedAvg with Adam on the server (Algorithm 2): Δ = Σ p_k w_k − w, m ← β₁m + (1 − β₁)Δ,
v ← β₂v + (1 − β₂)Δ², w ← w + η m / (√v + τ), without bias correction. The whole method is its
server optimiser, which every other method can use as well.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedtail.methods.base import Method
from fedtail.methods.fedavg import FedAvg, ModelState
from fedtail.training import ServerAdam, ServerOptimizer


@Method.register("fedadam")
class FedAdam(FedAvg[ModelState]):
    """FedAvg with Adam on the server."""

    family: ClassVar[str] = "server optimiser"
    paper: ClassVar[str] = "Reddi et al., Adaptive Federated Optimization, ICLR 2021"

    server_optimizer: ServerOptimizer = Field(
        ServerAdam(), description="what the server makes of the average"
    )
