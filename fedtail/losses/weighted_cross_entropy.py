"""Cross-entropy with class weights that the server tells: the local part of Ratio Loss.

Wang, Xu, Wang, Zhu, "Addressing Class Imbalance in Federated Learning", AAAI 2021.

−w_y log softmax(z)_y, summed over the batch and divided by the number of its samples. (torch's own
weighted cross-entropy divides by the sum of the weights, which takes the weight away again from a
batch of one class.) Without weights, as in the first round, it is cross-entropy.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from torch.nn import functional

from fedtail.losses.base import LocalLoss, LossContext
from fedtail.models.split_model import Output


@LocalLoss.register("weighted_cross_entropy")
class WeightedCrossEntropy(LocalLoss):
    """−w_y log softmax(z)_y with the server's class weights w, by the size of the batch."""

    reads_features: ClassVar[bool] = False

    def __call__(self, output: Output, y: Tensor, context: LossContext) -> Tensor:
        """Return the loss."""
        if context.weights is None:
            return functional.cross_entropy(output.logits, y)
        each = functional.cross_entropy(output.logits, y, reduction="none")
        return (context.weights[y] * each).mean()
