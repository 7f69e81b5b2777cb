"""RIDE.

Wang, Lian, Miao, Liu, Yu, "Long-tailed Recognition by Routing Diverse Distribution-Aware Experts",
ICLR 2021.

FedAvg of a model with one trunk and M experts that all clients train together, each expert by its
own LDAM loss and paid for being unlike the mean of all; the mean of their logits is tested. The
loss is `RIDELoss`. The paper's second stage, a router that calls fewer experts for easy samples, is
left out: it serves to make predictions cheaper.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedtail.losses import LocalLoss, RIDELoss
from fedtail.methods.base import Method
from fedtail.methods.fedavg import FedAvg, ModelState
from fedtail.methods.ldam import scale_for
from fedtail.models.experts import with_cosine_heads, with_experts
from fedtail.models.split_model import SplitModel


@Method.register("ride")
class RIDE(FedAvg[ModelState]):
    """FedAvg of experts that learn apart, are paid for differing, and vote together."""

    family: ClassVar[str] = "ensemble"
    paper: ClassVar[str] = (
        "Wang et al., Long-tailed Recognition by Routing Diverse Distribution-Aware Experts, "
        "ICLR 2021"
    )
    traffic: ClassVar[str] = "M experts instead of one, both ways"

    loss: LocalLoss = Field(RIDELoss(), description="of all experts, by default RIDE's")
    experts: int = Field(3, ge=1, description="number of experts, M; 1 gives LDAM")
    split_at: str = Field(
        "", description="child that the experts begin with; by default the middle weighted one"
    )
    cosine: bool = Field(True, description="give the experts cosine heads, of the loss's scale")

    def build_model(self, base: SplitModel) -> SplitModel:
        """Return the trunk and M experts, with cosine heads."""
        made = with_experts(base, self.experts, self.split_at)
        return with_cosine_heads(made, scale_for(self.loss)) if self.cosine else made
