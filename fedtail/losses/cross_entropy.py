"""Cross-entropy: −log softmax(z)_y."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from torch.nn import functional

from fedtail.losses.base import LocalLoss, LossContext
from fedtail.models.split_model import Output


@LocalLoss.register("cross_entropy")
class CrossEntropy(LocalLoss):
    """−log softmax(z)_y, averaged over the batch."""

    reads_features: ClassVar[bool] = False

    def __call__(self, output: Output, y: Tensor, context: LossContext) -> Tensor:
        """Return the loss."""
        return functional.cross_entropy(output.logits, y)
