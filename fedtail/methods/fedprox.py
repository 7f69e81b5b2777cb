"""FedProx.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks",
MLSys 2020.

FedAvg whose local loss has the extra term (μ/2)‖w − w_t‖² (Eq. 2), with w_t the model that the
client received: it keeps clients near each other. The term acts on parameters, not on buffers.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedtail.losses import LossContext
from fedtail.methods.base import Method
from fedtail.methods.fedavg import FedAvg, ModelState
from fedtail.protocol import Client, Payload, Tensors


@Method.register("fedprox")
class FedProx(FedAvg[ModelState]):
    """FedAvg with a pull towards the received model."""

    family: ClassVar[str] = "drift"
    paper: ClassVar[str] = "Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020"

    mu: float = Field(0.01, ge=0, description="μ: strength of the pull; 0 is FedAvg")

    def at_start(self, payload: Payload, client: Client, context: LossContext) -> Tensors:
        """Keep w_t."""
        received = payload.group("model")
        return {name: received[name].to(client.device) for name in client.model.trainable()}

    def adjust(self, gradients: Tensors, weights: Tensors, aux: Tensors) -> None:
        """Add μ (w − w_t), the gradient of the term, before clipping."""
        for name, g in gradients.items() if self.mu else ():
            g.add_(weights[name] - aux[name], alpha=self.mu)
