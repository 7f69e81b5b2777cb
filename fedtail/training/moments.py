"""Count, mean and covariance of each class's features: from sums over clients, and drawn from.

With n samples of a class, s = Σ h and Q = Σ h hᵀ over all clients, the mean is μ = s / n and the
covariance (Q − n μ μᵀ) / (n − 1): exactly those of all samples together, and nobody's own moments
are seen. The difference of two large numbers is why sums are in double precision: where means are
a thousand times the deviations, ten digits of the covariance are left.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedtail.data.federation import ClientData
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Tensors


class ClassSums(NamedTuple):
    """Of L classes: their numbers (L,), counts (L,), sums (L, d) and sums of products.

    The products h hᵀ are their upper triangle, row by row: (L, d(d+1)/2).
    """

    classes: Tensor
    counts: Tensor
    sums: Tensor
    products: Tensor


class Moments(NamedTuple):
    """Of L classes: their numbers (L,), counts (L,), means (L, d) and covariances.

    A covariance is its upper triangle, row by row: (L, d(d+1)/2).
    """

    classes: Tensor
    counts: Tensor
    mean: Tensor
    covariance: Tensor


def class_sums(model: SplitModel, data: ClientData, batch_size: int = 500) -> ClassSums:
    """Return the sums over the features of each local class, in evaluation mode."""
    model.eval()
    order = torch.argsort(data.labels, stable=True)
    with torch.no_grad():
        parts = [model.features(data.batch(i)[0]).cpu() for i in torch.split(order, batch_size)]
    h = torch.cat([torch.zeros(0, model.feature_dim), *parts]).to(torch.float64)
    classes, counts = torch.unique(data.labels, return_counts=True)
    upper = torch.triu_indices(model.feature_dim, model.feature_dim)
    groups = torch.split(h, counts.tolist())
    none = [h.new_zeros(0, model.feature_dim)], [h.new_zeros(0, upper.shape[1])]
    sums = torch.cat([*none[0], *(g.sum(dim=0, keepdim=True) for g in groups)])
    products = torch.cat([*none[1], *((g.T @ g)[upper[0], upper[1]][None] for g in groups)])
    return ClassSums(classes, counts, sums, products)


def pooled(told: Tensors) -> Moments:
    """Return the moments of all clients' samples together; classes without a sample are left out.

    Parameters
    ----------
    told
        `ClassSums` over all clients, by name.
    """
    there = told["counts"] > 0
    classes, n = told["classes"][there], told["counts"][there].double()[:, None]
    mean = told["sums"][there] / n
    upper = torch.triu_indices(mean.shape[1], mean.shape[1])
    outer = mean[:, upper[0]] * mean[:, upper[1]]
    # One sample has no covariance: Q − μ μᵀ is zero, up to rounding.
    covariance = (told["products"][there] - n * outer) / (n - 1).clamp(min=1)
    covariance = torch.where(n > 1, covariance, 0.0)
    return Moments(classes, told["counts"][there], mean, covariance)


def sample_features(moments: Moments, samples: int, generator: torch.Generator) -> Tensor:
    """Return features (L, samples, d) from N(μ_c, Σ_c) of each class.

    A covariance of fewer samples than dimensions is singular, and rounding may leave it a little
    negative: Σ = Q Λ Qᵀ is factored with Λ ≥ 0, so that μ + Q √Λ Qᵀ z is always defined. The
    symmetric root, because eigenvectors have no sign: with Q √Λ z alone the last bit of Σ could
    turn a drawn feature around.
    """
    width = moments.mean.shape[1]
    upper = torch.triu_indices(width, width)
    drawn = torch.empty(len(moments.classes), samples, width)
    for row, (mean, triangle) in enumerate(zip(moments.mean, moments.covariance, strict=True)):
        whole = mean.new_zeros(width, width)
        whole[upper[0], upper[1]] = triangle
        # eigh reads one triangle; "U" is the one there is.
        values, vectors = torch.linalg.eigh(whole, UPLO="U")
        z = torch.randn(samples, width, generator=generator, dtype=torch.float64)
        root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
        drawn[row] = mean + z @ root
    return drawn
