"""Means over clients: sums in float64, in the order of client ids: reply order never matters."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedtail.protocol import Tensors


def weighted_mean(items: Sequence[Tensors], weights: Sequence[float]) -> dict[str, Tensor]:
    """Return Σ w_k t_k / Σ w_k for every name.

    Whole numbers (the step counters of BatchNorm) have no mean: the largest is taken.
    """
    total = float(sum(weights))
    return {name: _mean([item[name] for item in items], weights, total) for name in items[0]}


def _mean(tensors: Sequence[Tensor], weights: Sequence[float], total: float) -> Tensor:
    if not tensors[0].is_floating_point():
        return torch.stack(list(tensors)).amax(dim=0)
    sum_ = torch.zeros(tensors[0].shape, dtype=torch.float64)
    for tensor, weight in zip(tensors, weights, strict=True):
        sum_.add_(tensor.to(torch.float64), alpha=weight / total)
    return sum_.to(tensors[0].dtype)
