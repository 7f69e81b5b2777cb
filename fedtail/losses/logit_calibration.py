"""Logit calibration, the loss of FedLC.

Zhang, Li, Li, Xu, Wu, Ding, Wu, "Federated Learning with Label Distribution Skew via Logits
Calibration", ICML 2022.

−log softmax(z̃)_y with z̃_c = z_c − τ n_c^(−1/4), n_c the client's own class counts; testing uses
the raw logits z. Written out (Eq. 6 and 7), the loss is log Σ_i exp(z_i − z_y + Δ_yi) with the
pairwise margin Δ_yi = τ (n_y^(−1/4) − n_i^(−1/4)): a rare class asks for a larger margin. A class
that the client does not hold counts as `absent` samples. With 0, as the formula has it, z̃_c = −∞:
it drops out and gets no gradient, and nobody teaches the difference between two classes that no
client holds together.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from fedtail.errors import FedtailError
from fedtail.losses.base import LocalLoss, LossContext, can_be_read
from fedtail.models.split_model import Output


@LocalLoss.register("logit_calibration")
class LogitCalibration(LocalLoss):
    """−log softmax(z − τ n^(−1/4))_y; τ = 0 is cross-entropy over all classes."""

    reads_features: ClassVar[bool] = False

    tau: float = Field(4.0, ge=0, description="strength of the margins; 0 is cross-entropy")
    absent: float = Field(
        1.0,
        ge=0,
        description="how many samples a class counts as that the client does not hold; 0 masks it",
    )
    exclude_true_class: bool = Field(
        False,
        description="leave y out of the sum, as Eq. 7 is printed; unbounded below, for study only",
    )

    def __call__(self, output: Output, y: Tensor, context: LossContext) -> Tensor:
        """Return the loss."""
        self.check(y, context.counts)
        z = self.adjusted(output.logits, context)
        if not self.exclude_true_class:
            return functional.cross_entropy(z, y)
        true = functional.one_hot(y, z.shape[1]).bool()
        others = z.masked_fill(true, -torch.inf)
        if not bool(torch.isfinite(others).any(dim=1).all()):
            # No other class is left: y against itself, log 1, where Eq. 7 has the log of nothing.
            return functional.cross_entropy(z, y)
        return (others.logsumexp(dim=1) - z.gather(1, y[:, None])[:, 0]).mean()

    def adjusted(self, z: Tensor, context: LossContext) -> Tensor:
        """Return z_c − τ n_c^(−1/4); with τ = 0 that is z, where 0 · ∞ would be NaN."""
        if self.tau == 0:
            return z
        n = torch.where(context.counts > 0, context.counts, self.absent)
        return z - self.tau * n.pow(-0.25)

    def check(self, y: Tensor, counts: Tensor) -> None:
        """Refuse a sample of a class that the client has none of by its counts."""
        unknown = y[counts[y] == 0] if self.tau and can_be_read(y) else y[:0]
        if len(unknown):
            raise FedtailError(
                f"logit_calibration got a sample of class {int(unknown[0])}, of which the client's"
                " class counts say that it has none"
            )
