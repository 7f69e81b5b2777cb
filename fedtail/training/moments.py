"""Count, mean and covariance of each class's features: from sums over clients, and drawn from.

With n samples of a class, s = Σ h and Q = Σ h hᵀ over all clients, the mean is μ = s / n and the
covariance (Q − n μ μᵀ) / (n − 1): exactly those of all samples together, and nobody's own moments
are seen. The difference of two large numbers is why sums are in double precision: where means are
a thousand times the deviations, ten digits of the covariance are left.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedtail.data.federation import ClientData
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Tensors
from fedtail.training.feature_sums import sketch_factor

Products = Literal["full", "diagonal", "low-rank"]
"""What is sent of Σ h hᵀ: its upper triangle, its diagonal, or its product with a matrix Ω."""
ENOUGH = 2
"""With more than so many samples a dimension a covariance is regular, rounding or not."""


class ClassSums(NamedTuple):
    """Of L classes: their numbers (L,), counts (L,), sums (L, d) and sums of products.

    The products h hᵀ are their upper triangle, row by row, (L, d(d+1)/2); their diagonal (L, d); or
    the image of Ω (L, d, r).
    """

    classes: Tensor
    counts: Tensor
    sums: Tensor
    products: Tensor


class Moments(NamedTuple):
    """Of L classes: their numbers (L,), counts (L,), means (L, d) and covariances.

    A covariance is its upper triangle, row by row, (L, d(d+1)/2); its diagonal, (L, d), and zero
    elsewhere; or its image of the test matrix Ω, (L, d, r).
    """

    classes: Tensor
    counts: Tensor
    mean: Tensor
    covariance: Tensor
    test: Tensor | None = None


def products_shape(width: int, products: Products, rank: int = 0) -> tuple[int, ...]:
    """Return the shape of what is sent of one class's products."""
    triangle = width * (width + 1) // 2
    return {"full": (triangle,), "diagonal": (width,), "low-rank": (width, rank)}[products]


def class_sums(
    model: SplitModel,
    data: ClientData,
    batch_size: int = 500,
    products: Products = "full",
    test: Tensor | None = None,
) -> ClassSums:
    """Return the sums over the features of each local class, in evaluation mode.

    Parameters
    ----------
    model, data, batch_size
        What gives the features, of what, and how many at a time.
    products, test
        What is kept of Σ h hᵀ; for "low-rank" Ω (d, r).
    """
    model.eval()
    order = torch.argsort(data.labels, stable=True)
    with torch.no_grad():
        parts = [model.features(data.batch(i)[0]).cpu() for i in torch.split(order, batch_size)]
    h = torch.cat([torch.zeros(0, model.feature_dim), *parts]).to(torch.float64)
    classes, counts = torch.unique(data.labels, return_counts=True)
    width = model.feature_dim
    upper = torch.triu_indices(width, width)

    def product(g: Tensor) -> Tensor:
        if products == "diagonal":
            return g.square().sum(dim=0)
        return (g.T @ g)[upper[0], upper[1]] if test is None else g.T @ (g @ test.double())

    shape = products_shape(width, products, 0 if test is None else test.shape[1])
    groups = torch.split(h, counts.tolist())
    sums = torch.cat([h.new_zeros(0, width), *(g.sum(dim=0, keepdim=True) for g in groups)])
    each = torch.cat([h.new_zeros(0, *shape), *(product(g)[None] for g in groups)])
    return ClassSums(classes, counts, sums, each)


def pooled(told: Tensors, test: Tensor | None = None) -> Moments:
    """Return the moments of all clients' samples together; classes without a sample are left out.

    Parameters
    ----------
    told
        `ClassSums` over all clients, by name.
    test
        Ω, if products are low-rank.
    """
    there = told["counts"] > 0
    classes, n = told["classes"][there], told["counts"][there].double()[:, None]
    mean = told["sums"][there] / n
    products = told["products"][there]
    n = n.reshape(-1, *[1] * (products.ndim - 1))
    # One sample has no covariance: Q − μ μᵀ is zero, up to rounding.
    covariance = (products - n * _outer(mean, products, test)) / (n - 1).clamp(min=1)
    covariance = torch.where(n > 1, covariance, 0.0)
    return Moments(classes, told["counts"][there], mean, covariance, test)


def _outer(mean: Tensor, products: Tensor, test: Tensor | None) -> Tensor:
    """Return μ μᵀ of each class, as its products are."""
    if test is not None:
        return mean[:, :, None] * (mean @ test.double())[:, None]
    if products.shape[1] == mean.shape[1]:
        return mean.square()
    upper = torch.triu_indices(mean.shape[1], mean.shape[1])
    return mean[:, upper[0]] * mean[:, upper[1]]


def sample_features(moments: Moments, samples: int, generator: torch.Generator) -> Tensor:
    """Return features (L, samples, d) from N(μ_c, Σ_c) of each class: μ + zR with RᵀR = Σ."""
    width = moments.mean.shape[1]
    drawn = torch.empty(len(moments.classes), samples, width)
    for row, (n, mean, covariance) in enumerate(
        zip(moments.counts.tolist(), moments.mean, moments.covariance, strict=True)
    ):
        z = torch.randn(samples, width, generator=generator, dtype=torch.float64)
        drawn[row] = mean + _stretched(z, covariance, moments.test, n > ENOUGH * width)
    return drawn


def _stretched(z: Tensor, covariance: Tensor, test: Tensor | None, regular: bool) -> Tensor:
    """Return zR with RᵀR = Σ.

    Of many samples by Cholesky, 25 times as fast as eigenvectors with 1,280 features. Of fewer Σ is
    singular, or nearly, and rounding may leave it a little negative: Σ = Q Λ Qᵀ is factored with
    Λ ≥ 0, and R = Q √Λ Qᵀ is always defined. The symmetric root, because eigenvectors have no sign:
    with √Λ Qᵀ alone the last bit of Σ could turn a drawn feature around.
    """
    width = z.shape[1]
    if test is not None:
        # Σ ≈ F Fᵀ with a thin F = U S Vᵀ, and so Σ^(1/2) = U S Uᵀ.
        vectors, roots, _ = torch.linalg.svd(sketch_factor(covariance, test), full_matrices=False)
    elif len(covariance) == width:
        return z * covariance.clamp(min=0).sqrt()
    else:
        # Of both factorisations "upper" is the triangle that is read, and the one there is.
        upper = torch.triu_indices(width, width)
        whole = z.new_zeros(width, width)
        whole[upper[0], upper[1]] = covariance
        if regular:
            triangle, failed = torch.linalg.cholesky_ex(whole, upper=True)
            if not failed:  # it does where a feature never changes
                return z.mm(triangle)
        values, vectors = torch.linalg.eigh(whole, UPLO="U")
        roots = values.clamp(min=0).sqrt()
    root: Tensor = (vectors * roots) @ vectors.T
    return z @ root
