"""Classifiers with class vectors that no gradient moves: simplex frames and prototypes.

A simplex equiangular tight frame is C unit vectors with the cosine −1/(C−1) between any two: as far
apart as C directions can be.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedtail.errors import FedtailError

SPREAD_STEPS, SPREAD_RATE = 300, 0.02
"""How a sparse frame is spread: steps of Adam and its rate, for rows of norm 1."""


def simplex(classes: int) -> Tensor:
    """Return the simplex frame in as many dimensions as classes: √(C/(C−1)) (I − 11ᵀ/C)."""
    centred = torch.eye(classes) - 1 / classes
    return centred * math.sqrt(classes / max(1, classes - 1))


def sparse_simplex(classes: int, width: int, sparsity: float, spread: bool = True) -> Tensor:
    """Return unit rows (C, d) that are far apart, with the same share of zeros in each.

    A simplex frame under a rotation, of whose rows `sparsity` of the numbers are set to zero; then
    Adam widens the smallest angle of each row with another one. The same for everybody: the draws
    come from a stream of their own.

    Parameters
    ----------
    classes, width
        C and d.
    sparsity
        The share of zeros; every row keeps at least one number.
    spread
        Whether angles are widened.
    """
    if classes > width:
        raise FedtailError(
            f"a simplex of {classes} classes needs as many features; the classifier has {width}"
        )
    draw = torch.Generator().manual_seed(0)
    rotation, _ = torch.linalg.qr(torch.randn(width, classes, generator=draw, dtype=torch.float64))
    rows = simplex(classes).double() @ rotation.T
    zeros = min(round(sparsity * width), width - 1)
    order = torch.rand(classes, width, generator=draw).argsort(dim=1)
    mask = order >= zeros
    start = functional.normalize(rows * mask, dim=1)
    found = _spread(start, mask) if spread and classes > 1 else start
    return found.float()


def _spread(start: Tensor, mask: Tensor) -> Tensor:
    rows = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([rows], lr=SPREAD_RATE)
    self_pairs = torch.eye(len(rows), dtype=torch.bool)
    for _ in range(SPREAD_STEPS):
        unit = functional.normalize(rows * mask, dim=1)
        nearest = (unit @ unit.T).masked_fill(self_pairs, -1.0).amax(dim=1)
        # The angle's own gradient is infinite for rows that point the same way.
        angles = torch.acos(nearest.clamp(-0.999, 0.999))
        optimizer.zero_grad()
        torch.autograd.backward(-angles.mean())
        optimizer.step()
    return functional.normalize(rows.detach() * mask, dim=1)


class FixedHead(nn.Linear):
    """Rows that are a part of the architecture: not trained, not sent; z = W h.

    Parameters
    ----------
    rows
        W, (classes, features).
    """

    def __init__(self, rows: Tensor) -> None:
        super().__init__(rows.shape[1], rows.shape[0], bias=False)
        self.weight = nn.Parameter(rows.clone(), requires_grad=False)

    def reset_parameters(self) -> None:
        """Leave the rows as they are."""


class _ScaledCosine(nn.Module):
    """Cosines with class vectors, times a scale that may be learned."""

    scale: Tensor

    def __init__(self, in_features: int, out_features: int, scale: float, learned: bool) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        first = torch.full((1,), float(scale))
        if learned:
            self.scale = nn.Parameter(first)
        else:
            self.register_buffer("scale", first, persistent=False)

    def extra_repr(self) -> str:
        """Return the sizes, for ``print(model)``."""
        return f"{self.in_features}, {self.out_features}"


class SimplexHead(_ScaledCosine):
    """FedETF's classifier: z = s M f, f = P h / ‖P h‖, M the simplex frame, which nothing moves.

    Parameters
    ----------
    in_features, out_features
        Width of the features; number of classes, to which P projects.
    scale, learned
        s, and whether it is trained.
    """

    frame: Tensor

    def __init__(
        self, in_features: int, out_features: int, scale: float = 10.0, learned: bool = True
    ) -> None:
        super().__init__(in_features, out_features, scale, learned)
        self.projection = nn.Linear(in_features, out_features)
        self.register_buffer("frame", simplex(out_features), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """Return logits, all within ±s."""
        f = functional.normalize(self.projection(features), dim=1)
        return self.scale * functional.linear(f, self.frame)


class PrototypeHead(_ScaledCosine):
    """FedNH's classifier: z_c = s cos(h, W_c), with unit W_c that only the server moves.

    Parameters
    ----------
    in_features, out_features
        Width of the features; number of classes.
    scale, learned
        s, and whether it is trained.
    """

    prototypes: Tensor

    def __init__(
        self, in_features: int, out_features: int, scale: float = 1.0, learned: bool = True
    ) -> None:
        super().__init__(in_features, out_features, scale, learned)
        self.register_buffer("prototypes", torch.empty(out_features, in_features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw orthogonal prototypes, or, of more classes than features, any unit vectors."""
        drawn = torch.randn(self.in_features, self.out_features)
        if self.out_features <= self.in_features:
            drawn = torch.linalg.qr(drawn)[0]
        self.prototypes.copy_(functional.normalize(drawn, dim=0).T)

    def forward(self, features: Tensor) -> Tensor:
        """Return logits, all within ±s."""
        return self.scale * functional.linear(
            functional.normalize(features, dim=1), functional.normalize(self.prototypes, dim=1)
        )
