"""Balanced Softmax.

Ren et al., "Balanced Meta-Softmax for Long-Tailed Visual Recognition", NeurIPS 2020.

−log softmax(z + τ log π)_y with π the class prior; testing uses the raw logits z. A class whose
prior is zero drops out of the softmax: log 0 = −∞, and it gets no gradient. τ is 1 there; other
values are the logit adjustment of Menon et al., "Long-tail Learning via Logit Adjustment", ICLR
2021.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import Tensor
from torch.nn import functional

from fedtail.losses.base import LocalLoss, LossContext
from fedtail.models.split_model import Output


@LocalLoss.register("balanced_softmax")
class BalancedSoftmax(LocalLoss):
    """−log softmax(z + τ log π)_y; the scale of π does not matter."""

    reads_features: ClassVar[bool] = False

    tau: float = Field(1.0, ge=0, description="strength of the prior; 0 is cross-entropy")

    def __call__(self, output: Output, y: Tensor, context: LossContext) -> Tensor:
        """Return the loss."""
        return functional.cross_entropy(self.adjusted(output.logits, context), y)

    def adjusted(self, z: Tensor, context: LossContext) -> Tensor:
        """Return z + τ log π; with τ = 0 that is z, where 0 · log 0 would be NaN."""
        return z if self.tau == 0 else z + self.tau * context.prior.log()
