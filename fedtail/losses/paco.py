"""PaCo: parametric contrast.

Cui, Zhong, Liu, Yu, Jia, "Parametric Contrastive Learning", ICCV 2021.

Supervised contrast in which the class centres, the rows of the classifier, are among what a sample
is compared with. For a sample with logits z, label y and unit query q, let P be the positives
among the other queries, the keys and the queue (those of class y) and A all of them. With
s_k = q · k / τ and centre logits c = z + log π,

−1 / (β + α |P|) · [ β log e^{c_y} / D + α Σ_{k ∈ P} log e^{s_k} / D ],
D = Σ_c e^{c_c} + γ Σ_{k ∈ A} e^{s_k}.

Positives weigh α, the own centre β. α = 0 and γ = 0 is the balanced softmax. The method `paco` adds
keys of a second view, from a momentum encoder, and a queue; by itself the loss compares the
features of one batch.
"""

from __future__ import annotations

import math

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from fedtail.losses.base import LocalLoss, LossContext
from fedtail.models.split_model import Output


@LocalLoss.register("paco")
class PaCoLoss(LocalLoss):
    """Supervised contrast with class centres; α = 0 and γ = 0 is balanced softmax."""

    alpha: float = Field(0.01, ge=0, description="α, weight of each positive sample")
    beta: float = Field(1.0, gt=0, description="β, weight of the sample's own class centre")
    gamma: float = Field(1.0, ge=0, description="γ, weight of samples in the denominator")
    temperature: float = Field(0.05, gt=0, description="τ of the comparison of samples")

    def __call__(self, output: Output, y: Tensor, context: LossContext) -> Tensor:
        """Return the loss of one batch, whose features are queries; there are no keys."""
        q = functional.normalize(output.features, dim=1)
        return self.contrast(output.logits, y, q, q[:0], y[:0], context.prior)

    def contrast(
        self, z: Tensor, y: Tensor, queries: Tensor, keys: Tensor, labels: Tensor, prior: Tensor
    ) -> Tensor:
        """Return the loss against the other queries and the keys, whose classes are `labels`."""
        s = queries @ torch.cat([queries, keys]).T / self.temperature
        itself = torch.eye(*s.shape, dtype=torch.bool, device=s.device)
        positive = (y[:, None] == torch.cat([y, labels])) & ~itself
        centres = z + prior.log()
        weight = math.log(self.gamma) if self.gamma else -torch.inf
        compared = (s + weight).masked_fill(itself, -torch.inf)
        total = torch.cat([centres, compared], dim=1).logsumexp(dim=1, keepdim=True)
        own = (centres.gather(1, y[:, None]) - total)[:, 0]
        alike = (s - total).masked_fill(~positive, 0.0).sum(dim=1)
        number = positive.sum(dim=1)
        return -((self.beta * own + self.alpha * alike) / (self.beta + self.alpha * number)).mean()
