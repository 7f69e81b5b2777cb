"""Cross-entropy by hand."""

from __future__ import annotations

import math

import pytest
import torch

from fedtail.losses import CrossEntropy, LossContext
from fedtail.models import Output

NOTHING = LossContext(counts=torch.zeros(2), prior=torch.zeros(2), round=1, rounds=1)


def test_value_and_gradient_by_hand() -> None:
    # softmax(0, ln 3) = (1/4, 3/4). For y = 0 the loss is -ln(1/4) = ln 4 and the gradient
    # p - e_y = (-3/4, 3/4); for y = 1 it is ln(4/3) and (1/4, -1/4). The batch is their mean.
    z = torch.tensor([[0.0, math.log(3)], [0.0, math.log(3)]], requires_grad=True)
    loss = CrossEntropy()(Output(z, torch.zeros(2, 1)), torch.tensor([0, 1]), NOTHING)
    (gradient,) = torch.autograd.grad(loss, z)
    assert float(loss.detach()) == pytest.approx((math.log(4) + math.log(4 / 3)) / 2)
    assert gradient.flatten().tolist() == pytest.approx([-3 / 8, 3 / 8, 1 / 8, -1 / 8])


def test_the_context_does_not_matter() -> None:
    z, y = torch.tensor([[1.0, 2.0]]), torch.tensor([1])
    other = LossContext(torch.tensor([1.0, 9.0]), torch.tensor([5.0, 0.0]), 7, 9)
    output = Output(z, torch.zeros(1, 1))
    assert torch.equal(CrossEntropy()(output, y, NOTHING), CrossEntropy()(output, y, other))
