"""LDAM, with deferred re-weighting.

Cao, Wei, Gaidon, Arechiga, Ma, "Learning Imbalanced Datasets with Label-Distribution-Aware Margin
Loss", NeurIPS 2019.

FedAvg with a cosine head whose clients ask a margin of the true class that is larger the rarer the
class is, and in the last third of the rounds give rare classes more weight. The loss is `LDAMLoss`.
The counts behind margins and weights are each client's own, or by another name those of all
(``prior=global``) or an estimate of them (``prior=proxy``).
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedtail.losses import LDAMLoss, LocalLoss, RIDELoss
from fedtail.methods.base import Method
from fedtail.methods.fedavg import FedAvg, ModelState
from fedtail.models.experts import with_cosine_heads
from fedtail.models.split_model import SplitModel


@Method.register("ldam")
class LDAM(FedAvg[ModelState]):
    """FedAvg with larger margins, and at the end larger weights, for rare classes."""

    family: ClassVar[str] = "local loss"
    paper: ClassVar[str] = (
        "Cao et al., Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss, "
        "NeurIPS 2019"
    )

    loss: LocalLoss = Field(LDAMLoss(), description="the loss that clients minimise")
    cosine: bool = Field(
        True,
        description="train a cosine head of the loss's scale in place of a linear one (paper); "
        "GBME's code keeps the linear head",
    )

    def build_model(self, base: SplitModel) -> SplitModel:
        """Give the model a cosine head, z = s cos θ."""
        return with_cosine_heads(base, scale_for(self.loss)) if self.cosine else base


def scale_for(loss: LocalLoss) -> float:
    """Return the s of a cosine head that goes with a loss: LDAM's own, 30 for all others."""
    inner = loss.base if isinstance(loss, RIDELoss) else loss
    return inner.scale if isinstance(inner, LDAMLoss) else 30.0
