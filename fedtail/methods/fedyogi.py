"""FedYogi.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, "Adaptive Federated Optimization",
ICLR 2021.

FedAvg with Yogi on the server (Algorithm 2): as FedAdam, but v ← v − (1 − β₂)Δ² sign(v − Δ²), which
falls more slowly after a large Δ. The whole method is its server optimiser, which every other
method can use as well.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedtail.methods.base import Method
from fedtail.methods.fedavg import FedAvg, ModelState
from fedtail.training import ServerOptimizer, ServerYogi


@Method.register("fedyogi")
class FedYogi(FedAvg[ModelState]):
    """FedAvg with Yogi on the server."""

    family: ClassVar[str] = "server optimiser"
    paper: ClassVar[str] = "Reddi et al., Adaptive Federated Optimization, ICLR 2021"

    server_optimizer: ServerOptimizer = Field(
        ServerYogi(), description="what the server makes of the average"
    )
