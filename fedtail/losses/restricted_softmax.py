"""Restricted softmax, the loss of FedRS.

Li, Zhan, "FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data",
KDD 2021.

−log softmax(a ∘ z)_y with a_c = 1 for the classes that the client holds and a_c = α for those that
it misses, so that they are pushed down less; testing uses the raw logits z. The gradient of a
missing class is α times that of the restricted softmax. α = 0 sets its logit to 0, which is not a
mask: the class still takes its share e⁰ of the softmax.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from fedtail.losses.base import LocalLoss, LossContext
from fedtail.models.split_model import Output


@LocalLoss.register("restricted_softmax")
class RestrictedSoftmax(LocalLoss):
    """−log softmax(a ∘ z)_y, a = α for missing classes; α = 1 is cross-entropy."""

    reads_features: ClassVar[bool] = False

    alpha: float = Field(
        0.5, ge=0, le=1, description="factor of a missing class's logit; 1 is cross-entropy"
    )
    scaling: Literal["missing", "counts"] = Field(
        "missing",
        description="which logits are scaled: those of missing classes (paper), or all, by "
        "α + (1 − α) n_c / n_max (authors' code)",
    )

    def __call__(self, output: Output, y: Tensor, context: LossContext) -> Tensor:
        """Return the loss."""
        return functional.cross_entropy(output.logits * self.factors(context.counts), y)

    def factors(self, counts: Tensor) -> Tensor:
        """Return a_c for the client's class counts n_c."""
        if self.scaling == "missing":
            return torch.where(counts > 0, 1.0, self.alpha)
        return self.alpha + (1 - self.alpha) * counts / counts.max().clamp(min=1)
