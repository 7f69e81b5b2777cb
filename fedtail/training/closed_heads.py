"""Linear heads in closed form, from sums of features over clients (`feature_sums.py`).

All work on standardised features z = (h − m) / σ, with mean and deviation over all samples, and
give an ordinary linear head on h: the shift and the scale are folded into weight and bias. So the
model that is shipped is as any other.

The scores of a closed form have a scale of their own, which no arg max needs and every probability
does. They are multiplied by t = Σ_c w̄_c·μ_c / tr(W̄ S W̄ᵀ), with W̄ the class vectors less their
mean and S the covariance within classes: were scores Gaussian, their differences would then be
log-likelihood ratios. For LDA without shrinkage t is 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from fedtail.config import Component, Registry
from fedtail.errors import FedtailError
from fedtail.models.heads import refuse_frozen
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Exchange, Server, Tensors
from fedtail.training.body import body_bytes
from fedtail.training.classifier import named
from fedtail.training.feature_sums import (
    DOUBLE,
    SINGLE,
    FeatureSums,
    Wanted,
    ask_feature_sums,
    block_bytes,
    from_sketch,
)
from fedtail.training.federated_features import Head

SKETCH = "head.blocks=3 sends a sketch of the second moments, head=ncm none"
NEGLIGIBLE = 1e-5
"""Of a new direction, as a part of the largest image: what is below is rounding of float32."""
FLAT = 1e-4
"""A deviation below this part of the largest is taken for rounding, and not blown up."""
BELOW_MEAN = 10.0
"""How far the logit of a class that nobody holds lies below the mean of the others."""
SUREST = 30.0
"""The largest mean distance of two classes' logits: one sample a class has no deviation at all."""


@dataclass(frozen=True)
class Standard:
    """Sums of the standardised features of the L classes that somebody holds.

    Attributes
    ----------
    counts
        n_c (L,).
    means
        μ_c (L, d).
    weights
        What all samples of a class weigh in the moments (L,): p_c n_c.
    energies
        The diagonal of A = Σ p_y z zᵀ (d,), which is exact even where A is not.
    image, test
        A Ω and Ω (see `FeatureSums`).
    """

    counts: Tensor
    means: Tensor
    weights: Tensor
    energies: Tensor
    image: Tensor | None = None
    test: Tensor | None = None

    @cached_property
    def moments(self) -> Tensor:
        """A, (d, d); diagonal if only its diagonal was asked for."""
        return self._matrix(self.image, self.energies)

    @cached_property
    def within(self) -> Tensor:
        """S: the covariance within classes, weighed as A is, with N − L degrees of freedom."""
        samples = self.counts.sum()
        total = self.weights.sum() * (samples - len(self.counts)).clamp(min=1) / samples
        shares = (self.weights / total)[:, None] * self.means
        diagonal = self.energies / total - (shares * self.means).sum(0)
        if self.image is None:
            return self._matrix(None, diagonal)
        # Of the image, not of A: a difference of two approximations could be negative.
        right = self.means if self.test is None else self.means @ self.test
        return self._matrix(self.image / total - shares.T @ right, diagonal)

    def _matrix(self, image: Tensor | None, diagonal: Tensor) -> Tensor:
        if image is None:
            return torch.diag(diagonal.clamp(min=0))
        if self.test is None:
            return (image + image.T) / 2
        found = from_sketch(image, self.test)
        # It is exact along Ω; what it misses is taken for the same in all directions across.
        along, _ = torch.linalg.qr(self.test)
        across = torch.eye(len(found)).double() - along @ along.T
        missed = (diagonal.sum() - found.trace()).clamp(min=0) / across.trace().clamp(min=1)
        whole: Tensor = found + missed * across
        return whole


class ClosedHead(Component):
    """How a linear head is computed from sums of features."""

    registry: ClassVar[Registry[ClosedHead]] = Registry("closed-form head")
    needs_bias: ClassVar[bool] = False
    """Whether the classifier must have a bias; without one, features are scaled and not shifted."""

    standardise: bool = Field(
        True, description="centre and scale features by mean and deviation over all clients"
    )

    @property
    def wanted(self) -> Wanted:
        """Which second moments it is made of."""
        return Wanted(products=False)

    def solve(self, s: Standard) -> Head:
        """Return class vectors (L, d) and, if there are any, offsets (L,) for z."""
        raise FedtailError(f"closed-form head '{self.name}' is abstract")

    def head(self, sums: FeatureSums, bias: bool = True) -> Head:
        """Return the head for features as they are, in float64; its bias is zero without `bias`."""
        shift, scale = frame(sums, self.standardise, bias)
        s = standardised(sums, shift, scale)
        found = self.solve(s)
        offset = torch.zeros(len(s.counts)).double() if found.bias is None else found.bias
        factor = likelihood_scale(found.weight, s)
        weight = factor * found.weight / scale
        offset = factor * offset - weight @ shift
        # No mean of logits is above all of them: such a class is never the likeliest.
        rows = weight.mean(0).expand(len(sums.counts), -1).clone()
        offsets = (offset.mean() - BELOW_MEAN * bias).expand(len(sums.counts)).clone()
        rows[sums.held], offsets[sums.held] = weight, offset
        return Head(rows, offsets)

    def ask(self, tensors: Tensors, network: SplitModel, server: Server) -> Exchange[FeatureSums]:
        """Hold the exchanges that bring the sums."""
        bias = getattr(network.classifier, "bias", None) is not None
        aim = partial(aimed, standardise=self.standardise, bias=bias)
        return (yield from ask_feature_sums(tensors, network, server, self.wanted, aim))

    def nbytes(self, network: SplitModel, classes: int) -> int:
        """Return how many bytes go to and from one client."""
        wanted, d, body = self.wanted, network.feature_dim, body_bytes(network)
        means = body + DOUBLE * (3 * classes + (classes + 2) * d)
        if not wanted.products:
            return means
        if wanted.aims(body, d, classes):
            return means + wanted.blocks * block_bytes(body, d, classes)
        if 0 < wanted.rank < d:
            return means + (SINGLE + DOUBLE) * d * wanted.rank
        return means + DOUBLE * d * (d + 1) // 2

    def put(self, sums: FeatureSums, network: SplitModel) -> dict[str, Tensor]:
        """Return the head by the names of a network's classifier; nothing if nobody has samples."""
        if not bool(sums.held.any()):
            return {}
        layer = self.carried_by(network)
        head = self.head(sums, layer.bias is not None)
        kept = Head(head.weight, None if layer.bias is None else head.bias)
        return {name: t.to(layer.weight.dtype) for name, t in named(kept, network).items()}

    def carried_by(self, network: SplitModel) -> nn.Linear:
        """Return the classifier of a network, if it can carry this head."""
        layer = network.classifier
        if not isinstance(layer, nn.Linear) or type(layer).forward is not nn.Linear.forward:
            raise FedtailError(
                "a closed-form head needs a linear classifier (nn.Linear) to be put into, not "
                f"{type(layer).__name__}"
            )
        refuse_frozen(layer)
        if self.needs_bias and layer.bias is None:
            raise FedtailError(
                f"the closed-form head '{self.name}' needs a classifier with a bias; without one "
                "take 'ridge' or 'ncm'"
            )
        return layer


@ClosedHead.register("ncm")
class NearestMean(ClosedHead):
    """The class whose mean has the largest cosine with the features: w_c = μ_c / ‖μ_c‖.

    A cosine is divided by ‖z‖ as well, which is the same for all classes: the arg max is that of a
    linear head.
    """

    def solve(self, s: Standard) -> Head:
        """Return the directions of the class means."""
        return Head(torch.nn.functional.normalize(s.means, dim=1), None)


class MomentsHead(ClosedHead):
    """A head that is made of second moments, whole or as a sketch."""

    rank: int = Field(
        0, ge=0, description="columns of a random sketch of second moments; 0 sends their triangle"
    )
    blocks: int = Field(
        0,
        ge=0,
        description="exchanges of a sketch of the second moments that is aimed at the class means, "
        "where that sends less than their triangle; 0 sends the triangle",
    )

    @model_validator(mode="after")
    def _one_sketch(self) -> Self:
        if self.rank and self.blocks:
            raise FedtailError(
                f"a sketch is random (rank = {self.rank}) or aimed (blocks = {self.blocks}): give "
                "one of them"
            )
        return self


@ClosedHead.register("ridge")
class BalancedRidge(MomentsHead):
    """Least squares on class indicators with a penalty, every class counting the same.

    A = (1/L) Σ_c (1/n_c) Σ_{i∈c} z zᵀ, b_c = μ_c / L, W = (A + ρ (tr A / d) I)⁻¹ [b_1 … b_L]ᵀ.
    """

    balance: bool = Field(
        True, description="a class of n samples counts as any other; else all samples count alike"
    )
    rho: float = Field(1.0, gt=0, description="ρ: the penalty, in mean eigenvalues of A")

    @property
    def wanted(self) -> Wanted:
        """A, balanced or not."""
        return Wanted(balanced=self.balance, rank=self.rank, blocks=self.blocks)

    def solve(self, s: Standard) -> Head:
        """Solve the normal equations."""
        penalty = self.rho * float(s.energies.mean())
        a = s.moments + (penalty or 1.0) * torch.eye(len(s.energies)).double()
        return Head(torch.linalg.solve(a, s.means.T * s.weights).T.contiguous(), None)


@ClosedHead.register("lda")
class LDA(MomentsHead):
    """Gaussians of one covariance: μ_cᵀ P z − ½ μ_cᵀ P μ_c, with P = Σ_s⁻¹ and Σ_s shrunk.

    Σ_s = (1 − s) Σ + s (tr Σ / d) I. Class means are shrunk to their centre m by empirical Bayes,
    μ_c ← m + n_c τ / (n_c τ + e) (μ_c − m), with e = tr(P Σ) and
    τ = mean_c max((μ_c − m)ᵀ P (μ_c − m) − e / n_c, 0).
    """

    needs_bias: ClassVar[bool] = True

    balance: bool = Field(
        True, description="all classes are as likely as any other; else by their samples"
    )
    shrinkage: float = Field(0.3, ge=0, le=1, description="s: of the covariance to its trace")
    shrink_means: bool = Field(True, description="shrink the means of rare classes to the centre")

    @property
    def wanted(self) -> Wanted:
        """Second moments over all samples."""
        return Wanted(rank=self.rank, blocks=self.blocks)

    def solve(self, s: Standard) -> Head:
        """Return Gaussian discriminants."""
        covariance, d = s.within, len(s.energies)
        spread = float(covariance.diagonal().mean())
        shrunk = (1 - self.shrinkage) * covariance
        shrunk.diagonal().add_(self.shrinkage * spread)
        factor, failed = torch.linalg.cholesky_ex(shrunk)
        if not spread > 0:  # samples that never leave their class's mean: then all is as far
            p = torch.eye(d).double()
        elif self.shrinkage > 0 and not failed:
            p = torch.cholesky_inverse(factor)
        else:  # directions in which no sample differs do not tell classes apart
            p = torch.linalg.pinv(shrunk, hermitian=True)
        means = self.shrunk_means(s, p, covariance) if self.shrink_means else s.means
        weight = means @ p
        offset = -(weight * means).sum(1) / 2
        if not self.balance:
            offset = offset + (s.counts / s.counts.sum()).log()
        return Head(weight, offset)

    def shrunk_means(self, s: Standard, p: Tensor, covariance: Tensor) -> Tensor:
        """Return the class means, the closer to their centre the fewer samples they are of."""
        centre = s.means.mean(0)
        away = s.means - centre
        expected = float((p * covariance).sum())
        distances = (away @ p * away).sum(1)
        tau = float((distances - expected / s.counts).clamp(min=0).mean())
        kept = s.counts * tau / (s.counts * tau + expected) if expected > 0 else s.counts / s.counts
        return centre + kept[:, None] * away


def frame(sums: FeatureSums, standardise: bool, bias: bool) -> tuple[Tensor, Tensor]:
    """Return m and σ of each feature over all samples; without a bias nothing can be shifted."""
    samples = sums.counts.sum()
    mean = sums.sums.sum(0) / samples
    if not standardise:
        return torch.zeros_like(mean), torch.ones_like(mean)
    deviation = (sums.squares / samples - mean.square()).clamp(min=0).sqrt()
    scale = torch.where(deviation > FLAT * deviation.max(), deviation, 1.0)
    return mean if bias else torch.zeros_like(mean), scale


def standardised(sums: FeatureSums, shift: Tensor, scale: Tensor) -> Standard:
    """Return the sums of z = (h − m) / σ, which follow from those of h."""
    held = sums.held
    counts, weights = sums.counts[held].double(), sums.weights[held]
    means = (sums.sums[held] / counts[:, None] - shift) / scale
    # Σ p (h − m)(h − m)ᵀ = Σ p h hᵀ − u mᵀ − m uᵀ + (Σ p) m mᵀ, with u = Σ p h.
    u, total = weights @ sums.sums[held], (weights * counts).sum()
    energies = (sums.energies - 2 * u * shift + total * shift.square()) / scale.square()
    image, test = sums.image, sums.test
    if image is not None:
        seen = torch.stack([shift, u]) if test is None else torch.stack([shift, u]) @ test
        image = image - torch.outer(u - total * shift, seen[0]) - torch.outer(shift, seen[1])
        image = image / scale[:, None]
        # A z-space Ω is σ Ω; the identity stays what it is, and the columns are scaled as the rows.
        image, test = (image / scale, None) if test is None else (image, test * scale[:, None])
    return Standard(counts, means, weights * counts, energies.clamp(min=0), image, test)


def aimed(sums: FeatureSums, standardise: bool, bias: bool) -> Tensor:
    """Return the next columns of Ω for features as they are: at most one a class.

    The first span the class means of z, those after them what A makes of the last ones: solving
    A W = [μ_1 … μ_L] on these is what as many steps of block conjugate gradients do.
    """
    shift, scale = frame(sums, standardise, bias)
    s = standardised(sums, shift, scale)
    if s.image is None or s.test is None:
        new, along = s.means.T, s.means.new_zeros(len(shift), 0)
    else:
        new, (along, _) = s.image, torch.linalg.qr(s.test)
    size = torch.linalg.matrix_norm(new, 2)
    for _ in range(2):  # once leaves what rounding put back
        new = new - along @ (along.T @ new)
    directions, sizes, _ = torch.linalg.svd(new, full_matrices=False)
    kept = int((sizes[: len(s.counts)] > NEGLIGIBLE * size).sum())
    block: Tensor = directions[:, :kept] / scale[:, None]
    return block


def likelihood_scale(weight: Tensor, s: Standard) -> float:
    """Return t: what makes differences of scores log-likelihood ratios, were they Gaussian."""
    apart = weight - weight.mean(0)
    between = float((apart * s.means).sum())
    within = float(((apart @ s.within) * apart).sum())
    if between <= 0:
        return 1.0
    surest = SUREST * max(1, len(weight) - 1) / (2 * between)
    return min(between / within, surest) if within > 0 else surest
