"""FedETF.

Li, Shang, He, Lin, Wu, "No Fear of Classifier Biases: Neural Collapse Inspired Federated Learning
with Synthetic and Fixed Classifier", ICCV 2023.

FedAvg with class vectors that are fixed, and the same for everybody: a simplex frame. Features are
projected to as many dimensions as there are classes and to length 1, and the logits are s times
their products with the frame. Clients train body, projection and s, under the balanced softmax of
their own class counts, in which a class that they lack counts as one sample.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field
from torch import nn

from fedtail.losses import BalancedSoftmax, LocalLoss, LossContext
from fedtail.methods.base import Method
from fedtail.methods.fedavg import FedAvg, ModelState
from fedtail.models.experts import with_new_heads
from fedtail.models.fixed_heads import SimplexHead
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Client, Payload
from fedtail.training.class_gradients import trained_head


@Method.register("fedetf")
class FedETF(FedAvg[ModelState]):
    """FedAvg with a fixed simplex of class vectors and the balanced softmax."""

    family: ClassVar[str] = "fixed classifier"
    paper: ClassVar[str] = (
        "Li et al., No Fear of Classifier Biases: Neural Collapse Inspired Federated Learning with "
        "Synthetic and Fixed Classifier, ICCV 2023"
    )
    needs: ClassVar[tuple[str, ...]] = ("a linear classifier, which it replaces",)
    traffic: ClassVar[str] = "a projection in the place of the classifier, and one number"

    loss: LocalLoss = Field(BalancedSoftmax(), description="the loss that clients minimise")
    scale: float = Field(10.0, gt=0, description="s, the factor of all logits, at the start")
    learn_scale: bool = Field(True, description="train s, and average it like a weight")
    absent: Literal["one", "mask"] = Field(
        "one",
        description="a class that the prior has no sample of: counts as one sample (code), or "
        "drops out of the softmax",
    )

    def build_model(self, base: SplitModel) -> SplitModel:
        """Put projection, scale and frame in the place of a linear classifier."""

        def simplex_head(head: nn.Module, name: str) -> nn.Module:
            linear = trained_head(head)
            return SimplexHead(
                linear.in_features, linear.out_features, self.scale, self.learn_scale
            )

        return with_new_heads(base, simplex_head)

    def context(self, payload: Payload, client: Client) -> LossContext:
        """Count absent classes as one sample, unless they are masked."""
        told = super().context(payload, client)
        return told if self.absent == "mask" else replace(told, prior=told.prior.clamp(min=1.0))
