"""FedAvgM.

Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification", arXiv:1909.06335, 2019.

FedAvg with momentum on the server: v ← βv + Δ, w ← w + η v, with Δ = Σ p_k w_k − w the way to the
average. The whole method is its server optimiser, which every other method can use as well.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedtail.methods.base import Method
from fedtail.methods.fedavg import FedAvg, ModelState
from fedtail.training import ServerOptimizer, ServerSGD


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
