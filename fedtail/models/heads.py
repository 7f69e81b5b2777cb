"""Classifiers other than `nn.Linear`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtail.errors import FedtailError


class CosineHead(nn.Module):
    """Cosine of features and class vectors, times a scale: the head of GBME's experts.

    z = s · (h / ‖h‖) (W / ‖W‖), with the weight stored as (features, classes), each class a column
    of unit norm in the product, and no bias.

    Parameters
    ----------
    in_features, out_features
        Width of the features; number of classes.
    scale
        The factor s.
    """

    class_axis = 1

    def __init__(self, in_features: int, out_features: int, scale: float = 30.0) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.scale = scale
        self.weight = nn.Parameter(torch.empty(in_features, out_features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw each class vector uniformly from the unit sphere."""
        with torch.no_grad():
            self.weight.normal_()
            self.weight.copy_(F.normalize(self.weight, dim=0))

    def forward(self, features: Tensor) -> Tensor:
        """Return logits, all within ±scale."""
        return self.scale * (F.normalize(features, dim=1) @ F.normalize(self.weight, dim=0))

    def extra_repr(self) -> str:
        """Return the sizes, for ``print(model)``."""
        return f"{self.in_features}, {self.out_features}, scale={self.scale:g}"


class ScaledHead(nn.Linear):
    """BalanceFL's classifier: no bias, a frozen factor per class, and one factor for all.

    z_c = s · a_c · (w_c h), a = 1. The factors a_c belong to the checkpoint but are never trained.

    Parameters
    ----------
    in_features, out_features
        Width of the features; number of classes.
    scale
        The factor s of all logits: 2 for BalanceFL on CIFAR-10, else 1.
    """

    def __init__(self, in_features: int, out_features: int, scale: float = 1.0) -> None:
        super().__init__(in_features, out_features, bias=False)
        self.scale = scale
        self.weight_scale = nn.Parameter(torch.ones(out_features), requires_grad=False)

    def reset_parameters(self) -> None:
        """Draw the weight as He et al. do: N(0, 2 / in_features)."""
        nn.init.kaiming_normal_(self.weight)

    def forward(self, features: Tensor) -> Tensor:
        """Return logits."""
        return F.linear(features, self.weight) * (self.scale * self.weight_scale)

    def extra_repr(self) -> str:
        """Return the sizes, for ``print(model)``."""
        return f"{super().extra_repr()}, scale={self.scale:g}"


def refuse_frozen(head: nn.Module, parts: Sequence[str] = ("weight", "bias")) -> None:
    """Refuse a classifier whose weight or bias is frozen: what is made for both fits neither alone.

    Other factors may be frozen on purpose, as those of a `ScaledHead` are.
    """
    for part in parts:
        held = getattr(head, part, None)
        if isinstance(held, nn.Parameter) and not held.requires_grad:
            raise FedtailError(
                f"the {part} of the classifier is frozen (requires_grad=False), and would be read"
                " or replaced here as if it were trained: train it too"
            )


def class_axis(head: nn.Module) -> int:
    """Return the axis of ``head.weight`` that counts classes: 0, and 1 for a `CosineHead`."""
    axis = getattr(head, "class_axis", 0)
    return axis if isinstance(axis, int) else 0
