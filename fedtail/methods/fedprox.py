"""FedProx.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks",
MLSys 2020.

FedAvg whose local loss has the extra term (μ/2)‖w − w_t‖² (Eq. 2), with w_t the model that the
client received: it keeps clients near each other. The term acts on parameters, not on buffers.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from fedtail.methods.base import Method
from fedtail.methods.fedavg import FedAvg, LocalRun, ModelState


@Method.register("fedprox")
class FedProx(FedAvg[ModelState]):
    """FedAvg with a pull towards the received model."""

    family: ClassVar[str] = "drift"
    paper: ClassVar[str] = "Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020"

    mu: float = Field(0.01, ge=0, description="μ: strength of the pull; 0 is FedAvg")

    def prepare(self, run: LocalRun) -> dict[str, Tensor]:
        """Keep w_t."""
        return {name: p.detach().clone() for name, p in run.model.trainable().items()}

    def after_backward(self, run: LocalRun) -> None:
        """Add μ (w − w_t), the gradient of the term, before clipping."""
        if not self.mu:
            return
        for name, parameter in run.model.trainable().items():
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach() - run.aux[name], alpha=self.mu)
