"""Focal loss.

Lin, Goyal, Girshick, He, Dollár, "Focal Loss for Dense Object Detection", ICCV 2017.

−(1 − p_y)^γ log p_y with p = softmax(z): samples that the model gets right already count less.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from fedtail.losses.base import LocalLoss, LossContext
from fedtail.models.split_model import Output


@LocalLoss.register("focal")
class Focal(LocalLoss):
    """−(1 − p_y)^γ log p_y; γ = 0 is cross-entropy."""

    reads_features: ClassVar[bool] = False

    gamma: float = Field(2.0, ge=0, description="how fast easy samples lose weight; 0 for never")
    detach: bool = Field(
        False, description="no gradient through the factor (1 − p_y)^γ, as GBME's code has it"
    )

    def __call__(self, output: Output, y: Tensor, context: LossContext) -> Tensor:
        """Return the loss."""
        if self.gamma == 0:
            return functional.cross_entropy(output.logits, y)
        surprise = functional.cross_entropy(output.logits, y, reduction="none")
        # 1 − p_y without cancellation. At p_y = 1 a power γ < 1 has an infinite slope: the floor
        # takes its place, and what it multiplies is 0.
        missing = -torch.expm1(-surprise.detach() if self.detach else -surprise)
        factor = missing.clamp(min=torch.finfo(missing.dtype).tiny) ** self.gamma
        return (factor * surprise).mean()
