"""RIDE: diverse experts.

Wang, Lian, Miao, Liu, Yu, "Long-tailed Recognition by Routing Diverse Distribution-Aware Experts",
ICLR 2021.

Σ_i [ base(z_i) − λ T̄² KL(softmax(z̄ / T) ‖ softmax(z_i / T)) ] over the experts i: each learns by
itself, and is paid for being unlike the mean z̄, which gets no gradient. The temperature is a
class's own, T_c ∝ γ C π_c + 1 − γ with the largest equal to T, so that experts differ more on rare
classes; T̄ is its mean. With one expert it is the base loss.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedtail.losses.base import LocalLoss, LossContext
from fedtail.losses.ldam import LDAMLoss
from fedtail.models.split_model import Output


@LocalLoss.register("ride")
class RIDELoss(LocalLoss):
    """Σ_i base(z_i) − λ T² KL(mean ‖ expert i); one expert gives the base loss."""

    reads_features: ClassVar[bool] = False

    base: LocalLoss = Field(LDAMLoss(), description="the loss of each expert's own logits")
    diversity: float = Field(0.2, ge=0, description="λ, weight of being unlike the mean")
    temperature: float = Field(1.0, gt=0, description="T, the largest temperature of a class")
    spread: float = Field(
        0.05, ge=0, lt=1, description="γ, how far temperatures follow the prior; 0: all are T"
    )

    def __call__(self, output: Output, y: Tensor, context: LossContext) -> Tensor:
        """Return the loss."""
        each = output.logits[None] if output.experts is None else output.experts
        alone = [self.base(output._replace(logits=z, experts=None), y, context) for z in each]
        loss = torch.stack(alone).sum()
        if self.diversity == 0 or len(each) == 1:
            return loss
        t = self.temperatures(context.prior)
        mean = (output.logits.detach() / t).log_softmax(dim=1)
        # Written out: torch's own has no rule for many clients at once.
        apart = [(mean.exp() * (mean - (z / t).log_softmax(dim=1))).sum(dim=1).mean() for z in each]
        return loss - self.diversity * t.mean() ** 2 * torch.stack(apart).sum()

    def temperatures(self, prior: Tensor) -> Tensor:
        """T_c = T β_c / max β with β_c = γ C π_c + 1 − γ, π the shares of the prior."""
        beta = self.spread * len(prior) * prior / prior.sum() + 1 - self.spread
        return self.temperature * beta / beta.max()
