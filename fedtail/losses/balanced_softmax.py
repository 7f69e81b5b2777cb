"""Balanced Softmax.

Ren et al., "Balanced Meta-Softmax for Long-Tailed Visual Recognition", NeurIPS 2020.

−log softmax(z + log π)_y with π the class prior; testing uses the raw logits z. A class whose prior
is zero drops out of the softmax: log 0 = −∞, and it gets no gradient.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from torch.nn import functional

from fedtail.losses.base import LocalLoss, LossContext
from fedtail.models.split_model import Output


@LocalLoss.register("balanced_softmax")
class BalancedSoftmax(LocalLoss):
    """−log softmax(z + log π)_y; the scale of π does not matter."""

    reads_features: ClassVar[bool] = False

    def __call__(self, output: Output, y: Tensor, context: LossContext) -> Tensor:
        """Return the loss."""
        return functional.cross_entropy(output.logits + context.prior.log(), y)
