"""LADE: label distribution disentangling.

Hong, Han, Choi, Seo, Kim, Chang, "Disentangling Label Distribution for Long-tailed Visual
Recognition", CVPR 2021.

The balanced softmax of the prior π (the paper's PC softmax) plus λ · LADER, which makes the logit
z_c an estimate of log p(x | c) / p(x) for balanced classes (Donsker and Varadhan's bound):

LADER = −Σ_c π_c [ mean_{y=c} z_c − A_c − ρ A_c² ],  A_c = log mean_x exp(z_c − log π_c − log C),

with means over the batch. The bound of a class needs samples of it, so the sum goes over the
classes of the batch. A class whose prior is zero has the weight π_c = 0.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from fedtail.losses.balanced_softmax import BalancedSoftmax
from fedtail.losses.base import LocalLoss, LossContext
from fedtail.models.split_model import Output


@LocalLoss.register("lade")
class LADELoss(LocalLoss):
    """Balanced softmax + λ · LADER; λ = 0 is balanced softmax."""

    reads_features: ClassVar[bool] = False

    lam: float = Field(0.1, ge=0, description="λ, weight of LADER; 0 is balanced softmax")
    rho: float = Field(0.01, ge=0, description="ρ, weight of the penalty A² inside LADER")
    every_class: bool = Field(
        False,
        description="sum over all classes of the prior, with a mean of 0 where the batch has no "
        "sample of one (authors' code); it pushes the logits of rare classes down",
    )

    def __call__(self, output: Output, y: Tensor, context: LossContext) -> Tensor:
        """Return the loss."""
        balanced = BalancedSoftmax()(output, y, context)
        if self.lam == 0:
            return balanced
        return balanced + self.lam * self.lader(output.logits, y, context.prior)

    def lader(self, z: Tensor, y: Tensor, prior: Tensor) -> Tensor:
        """−Σ_c π_c [ mean_{y=c} z_c − A_c − ρ A_c² ]."""
        share = prior / prior.sum()
        own = functional.one_hot(y, len(share)).bool()
        number = own.sum(dim=0)
        used = share > 0 if self.every_class else (share > 0) & (number > 0)
        # A class that is not used has a finite term, whose weight is 0.
        pi, known = torch.where(used, share, 0.0), torch.where(used, share, 1.0)
        z = torch.where(used, z, 0.0)
        mean = torch.where(own, z, 0.0).sum(dim=0) / number.clamp(min=1)
        a = (z - known.log() - math.log(len(share))).logsumexp(dim=0) - math.log(len(y))
        return -(pi * (mean - a - self.rho * a**2)).sum()
