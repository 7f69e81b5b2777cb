"""LDAM: label-distribution-aware margins, with deferred re-weighting (DRW).

Cao, Wei, Gaidon, Arechiga, Ma, "Learning Imbalanced Datasets with Label-Distribution-Aware Margin
Loss", NeurIPS 2019.

CE(z − s Δ_y e_y, y) with margins Δ_c = m (n_min / n_c)^(1/4): the rarest class has to win by m.
The paper scales inside the loss, s · (cos θ − Δ_y e_y); here a `CosineHead` of scale s gives
z = s cos θ, so that training and test see the same logits. In the last part of the rounds a sample
of class c weighs (1 − β) / (1 − β^n_c) (DRW), and the batch is the weighted mean. The counts n are
those of the method's prior; a class without any stands for a tenth of a sample.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from fedtail.losses.base import LocalLoss, LossContext
from fedtail.models.split_model import Output


@LocalLoss.register("ldam")
class LDAMLoss(LocalLoss):
    """CE(z − s Δ_y e_y, y), Δ_c = m (n_min / n_c)^(1/4), re-weighted in the last rounds."""

    reads_features: ClassVar[bool] = False

    margin: float = Field(0.5, ge=0, description="m, the margin of the rarest class, in cosines")
    scale: float = Field(30.0, gt=0, description="s, what one unit of cosine is in logits")
    drw: bool = Field(True, description="re-weight classes in the last rounds (DRW)")
    drw_start: float = Field(
        2 / 3, ge=0, le=1, description="share of the rounds that pass before DRW begins"
    )
    beta: float = Field(
        0.9999, ge=0, lt=1, description="β of DRW's weights (1 − β) / (1 − β^n); 0 is no weight"
    )
    absent: float = Field(
        0.1, gt=0, description="the count that a class without samples in the prior stands for"
    )

    def __call__(self, output: Output, y: Tensor, context: LossContext) -> Tensor:
        """Return the loss."""
        n = torch.where(context.prior > 0, context.prior, self.absent)
        true = functional.one_hot(y, len(n))
        z = output.logits - self.scale * self.margins(n) * true
        return functional.cross_entropy(z, y, weight=self.weights(n, context.round, context.rounds))

    def margins(self, n: Tensor) -> Tensor:
        """Δ_c = m (n_min / n_c)^(1/4)."""
        return self.margin * (n.min() / n) ** 0.25

    def weights(self, n: Tensor, round: int, rounds: int) -> Tensor | None:
        """(1 − β) / (1 − β^n_c) once DRW has begun; their common factor does not matter."""
        if not self.drw or self.beta == 0 or round - 1 < self.drw_start * rounds - 1e-9:
            return None
        # 1 − β^n without cancellation: β = 0.9999 and few samples are nearly 0.
        return (1 - self.beta) / -torch.expm1(n * math.log(self.beta))
