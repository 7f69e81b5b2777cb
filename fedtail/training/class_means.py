"""Sums and means of a client's features by class."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedtail.data.federation import ClientData
from fedtail.models.split_model import SplitModel

MEANS_AT_ONCE = 500
"""Samples that are given to the network at a time."""


class SumsByClass(NamedTuple):
    """Of all C classes: Σ h (C, d), and how many samples that is (C,)."""

    sums: Tensor
    counts: Tensor

    @property
    def means(self) -> Tensor:
        """Σ h / n of each class, zero where there is no sample."""
        return self.sums / self.counts.clamp(min=1)[:, None]


def features_of(model: SplitModel, data: ClientData) -> Tensor:
    """Return the features of all local samples, on the CPU, in evaluation mode."""
    model.eval()
    every = torch.arange(len(data))
    with torch.no_grad():
        parts = [model.features(data.batch(i)[0]).cpu() for i in torch.split(every, MEANS_AT_ONCE)]
    return torch.cat([torch.zeros(0, model.feature_dim), *parts])


def sums_by_class(h: Tensor, labels: Tensor, classes: int) -> SumsByClass:
    """Return the sums of rows of features over the samples of each class."""
    sums = h.new_zeros(classes, h.shape[1]).index_add_(0, labels, h)
    return SumsByClass(sums, torch.bincount(labels, minlength=classes))
