"""Binary cross-entropy: every class for itself, yes or no.

−log σ(z_y) − Σ_{c ≠ y} log σ(−z_c). Testing takes the largest logit, as for any loss.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fedtail.losses.base import LocalLoss, LossContext
from fedtail.models.split_model import Output


@LocalLoss.register("binary_cross_entropy")
class BinaryCrossEntropy(LocalLoss):
    """−log σ(z_y) − Σ_{c≠y} log σ(−z_c), averaged over the batch."""

    reads_features: ClassVar[bool] = False

    def __call__(self, output: Output, y: Tensor, context: LossContext) -> Tensor:
        """Return the loss."""
        return binary_losses(output.logits, y).sum(dim=1).mean()


def binary_losses(z: Tensor, y: Tensor) -> Tensor:
    """Return the loss of every sample and class, (batch, classes)."""
    target = is_class(y, z.shape[1]).to(z.dtype)
    return functional.binary_cross_entropy_with_logits(z, target, reduction="none")


def is_class(y: Tensor, classes: int) -> Tensor:
    """Return whether each sample is of each class, (batch, classes)."""
    return y[:, None] == torch.arange(classes, device=y.device)
