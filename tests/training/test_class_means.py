"""Sums of a client's features by class."""

from __future__ import annotations

import tiny
import torch
from torch import nn

from fedtail.models import SplitModel
from fedtail.training.class_means import features_of, sums_by_class


def test_sums_and_means_by_hand() -> None:
    h = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    found = sums_by_class(h, torch.tensor([0, 2, 0]), 3)
    assert found.sums.tolist() == [[6.0, 8.0], [0.0, 0.0], [3.0, 4.0]]
    assert found.counts.tolist() == [2, 0, 1]
    assert found.means.tolist() == [[3.0, 4.0], [0.0, 0.0], [3.0, 4.0]]


def test_features_are_those_of_evaluation_in_the_order_of_the_samples() -> None:
    body = nn.Sequential(nn.Linear(1, 2, bias=False), nn.Dropout(0.9), nn.Linear(2, 2))
    model = SplitModel(body).train()
    with torch.no_grad():
        model.module.get_parameter("0.weight").copy_(torch.tensor([[1.0], [2.0]]))
    data = tiny.federation([[1.0], [2.0], [3.0]], [0, 1, 0], [[2, 0]])
    h = features_of(model, data.client(0))
    assert h.tolist() == [[3.0, 6.0], [1.0, 2.0]]
    assert not h.requires_grad
