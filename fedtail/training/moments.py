"""Count, mean and covariance of each class's features: on a client, pooled, and drawn from.

With n_k samples of mean μ_k and covariance Σ_k (divisor n_k − 1) at client k, the pooled ones are
μ = Σ_k (n_k/n) μ_k and

    Σ = Σ_k (n_k−1)/(n−1) Σ_k + Σ_k n_k/(n−1) μ_k μ_kᵀ − n/(n−1) μ μᵀ,

exactly those of all samples together. The last two terms are Σ_k n_k/(n−1) (μ_k−μ)(μ_k−μ)ᵀ, which
does not subtract large numbers, and is how it is computed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedtail.data.federation import ClientData
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Tensors


class Moments(NamedTuple):
    """Of L classes: their numbers (L,), counts (L,), means (L, d) and covariances.

    A covariance is its upper triangle, row by row: (L, d(d+1)/2).
    """

    classes: Tensor
    counts: Tensor
    mean: Tensor
    covariance: Tensor


def class_moments(model: SplitModel, data: ClientData, batch_size: int = 500) -> Moments:
    """Return the moments of the features of each local class, in evaluation mode."""
    model.eval()
    order = torch.argsort(data.labels, stable=True)
    with torch.no_grad():
        parts = [model.features(data.batch(i)[0]).cpu() for i in torch.split(order, batch_size)]
    h = torch.cat([torch.zeros(0, model.feature_dim), *parts]).to(torch.float64)
    classes, counts = torch.unique(data.labels, return_counts=True)
    upper = torch.triu_indices(model.feature_dim, model.feature_dim)
    mean = h.new_zeros(len(classes), model.feature_dim)
    covariance = h.new_zeros(len(classes), upper.shape[1])
    for row, of_class in enumerate(torch.split(h, counts.tolist())):
        mean[row] = of_class.mean(dim=0)
        centred = of_class - mean[row]
        # One sample has no covariance: it is sent as zero, and counts n − 1 = 0 in the pool.
        square = centred.T @ centred / max(1, len(of_class) - 1)
        covariance[row] = square[upper[0], upper[1]]
    return Moments(classes, counts, mean.float(), covariance.float())


def pooled(groups: Sequence[Tensors], num_classes: int) -> Moments:
    """Return the moments of all clients' samples together, in float64.

    Parameters
    ----------
    groups
        Of each client the fields of its `Moments`, by name.
    num_classes
        Rows of any other class are left out, and so are classes without a sample.
    """
    # Counts first, over all clients: the means are weighted by them, and covariances by the means.
    counts = torch.zeros(num_classes, dtype=torch.int64)
    for group in groups:
        known = (group["classes"] >= 0) & (group["classes"] < num_classes)
        counts.index_add_(0, group["classes"][known], group["counts"][known])
    classes = torch.nonzero(counts)[:, 0]
    width = groups[0]["mean"].shape[1]
    upper = torch.triu_indices(width, width)
    mean = torch.zeros(len(classes), width, dtype=torch.float64)
    covariance = torch.zeros(len(classes), upper.shape[1], dtype=torch.float64)
    for row, c in enumerate(classes):
        rows = [group["classes"] == c for group in groups]

        def of(name: str, rows: Sequence[Tensor] = rows) -> Tensor:
            return torch.cat([g[name][r] for g, r in zip(groups, rows, strict=True)]).double()

        n, mu, n_c = of("counts"), of("mean"), int(counts[c])
        mean[row] = n @ mu / n_c
        # Differences before squares: n μμᵀ subtracted from Σ n_k μ_k μ_kᵀ would leave the rounding
        # errors of two large numbers where clients agree.
        between = ((mu - mean[row]).T * n) @ (mu - mean[row])
        # Each client divided by its n_k − 1; a client of one sample adds nothing within.
        within = (n - 1) @ of("covariance")
        covariance[row] = (within + between[upper[0], upper[1]]) / max(1, n_c - 1)
    return Moments(classes, counts[classes], mean, covariance)


def sample_features(moments: Moments, samples: int, generator: torch.Generator) -> Tensor:
    """Return features (L, samples, d) from N(μ_c, Σ_c) of each class.

    A covariance of fewer samples than dimensions is singular, and rounding may leave it a little
    negative: Σ = Q Λ Qᵀ is factored with Λ ≥ 0, so that μ + Q √Λ z is always defined.
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
        drawn[row] = mean + (z * values.clamp(min=0).sqrt()) @ vectors.T
    return drawn
