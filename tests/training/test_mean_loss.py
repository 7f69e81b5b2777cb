"""The loss of a model on a client's own data."""

from __future__ import annotations

import math

import pytest
import tiny
import torch
from torch import nn

from fedtail.losses import BalancedSoftmax, CrossEntropy, LossContext
from fedtail.models import SplitModel
from fedtail.training.mean_loss import mean_loss

CONTEXT = LossContext(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 3.0]), 1, 1)


def linear() -> SplitModel:
    """Return softmax regression; x = 1 has the softmax (3/4, 1/4)."""
    model = SplitModel(nn.Sequential(nn.Linear(1, 2, bias=False)))
    model.load({"0.weight": torch.tensor([[math.log(3)], [0.0]])})
    return model


def test_the_mean_by_hand() -> None:
    # One sample of class 0 and three of class 1: (ln 4/3 + 3 ln 4) / 4. With the prior (1, 3) the
    # odds 3 : 1 become 3 : 3, so every loss is ln 2.
    data = tiny.federation([[1.0]] * 4, [0, 1, 1, 1], [range(4)]).client(0)
    found = mean_loss(linear(), data, CrossEntropy(), CONTEXT)
    assert found == pytest.approx((math.log(4 / 3) + 3 * math.log(4)) / 4, rel=1e-6)
    assert mean_loss(linear(), data, BalancedSoftmax(), CONTEXT) == pytest.approx(math.log(2))


def test_a_last_small_batch_counts_by_its_samples() -> None:
    # 500 samples of class 0 in the first batch and one of class 1 in the second.
    data = tiny.federation([[1.0]] * 501, [0] * 500 + [1], [range(501)]).client(0)
    found = mean_loss(linear(), data, CrossEntropy(), CONTEXT)
    assert found == pytest.approx((500 * math.log(4 / 3) + math.log(4)) / 501, rel=1e-5)


def test_it_is_the_model_as_it_is() -> None:
    # BatchNorm uses what it knows and learns nothing; dropout drops nothing.
    layers = nn.Sequential(nn.BatchNorm1d(1), nn.Dropout(0.9), nn.Linear(1, 2, bias=False))
    model = SplitModel(layers)
    before = model.tensors()
    data = tiny.federation([[1.0], [5.0]], [0, 1], [range(2)]).client(0)
    model.train()
    found = mean_loss(model, data, CrossEntropy(), CONTEXT)
    assert found == mean_loss(model, data, CrossEntropy(), CONTEXT)
    assert all(torch.equal(before[name], t) for name, t in model.tensors().items())
    assert not model.training


def test_no_samples_have_no_loss() -> None:
    data = tiny.federation([[1.0]], [0], [[0], []]).client(1)
    assert mean_loss(linear(), data, CrossEntropy(), CONTEXT) == 0.0
