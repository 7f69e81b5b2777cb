"""FedAdagrad.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, "Adaptive Federated Optimization",
ICLR 2021.

FedAvg with Adagrad on the server (Algorithm 2): v ← v + Δ², w ← w + η m / (√v + τ), so that a
parameter's steps shrink with all that it has moved. The whole method is its server optimiser, which
every other method can use as well.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedtail.methods.base import Method
from fedtail.methods.fedavg import FedAvg, ModelState
from fedtail.training import ServerAdagrad, ServerOptimizer


@Method.register("fedadagrad")
class FedAdagrad(FedAvg[ModelState]):
    """FedAvg with Adagrad on the server."""

    family: ClassVar[str] = "server optimiser"
    paper: ClassVar[str] = "Reddi et al., Adaptive Federated Optimization, ICLR 2021"

    server_optimizer: ServerOptimizer = Field(
        ServerAdagrad(), description="what the server makes of the average"
    )
