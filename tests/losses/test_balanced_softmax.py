"""Balanced Softmax by hand: -log of π_y e^{z_y} / Σ π_c e^{z_c}."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from fedtail.losses import BalancedSoftmax, CrossEntropy, LossContext
from fedtail.models import Output


def evaluated(
    z: Sequence[Sequence[float]], y: list[int], prior: list[float]
) -> tuple[float, Tensor]:
    logits = torch.tensor(z, requires_grad=True)
    context = LossContext(torch.tensor(prior), torch.tensor(prior), 1, 1)
    loss = BalancedSoftmax()(Output(logits, torch.zeros(len(y), 1)), torch.tensor(y), context)
    (gradient,) = torch.autograd.grad(loss, logits)
    return float(loss.detach()), gradient


def test_value_and_gradient_by_hand() -> None:
    # z = 0 and π = (1, 3): the adjusted softmax is (1/4, 3/4). y = 0: ln 4, gradient (-3/4, 3/4).
    loss, gradient = evaluated([[0.0, 0.0]], [0], [1.0, 3.0])
    assert loss == pytest.approx(math.log(4))
    assert gradient.tolist()[0] == pytest.approx([-0.75, 0.75])


def test_logits_and_prior_multiply() -> None:
    # π e^z = (1 · 6, 2 · 1, 4 · 1) = (6, 2, 4), so softmax = (1/2, 1/6, 1/3); y = 1: ln 6.
    loss, gradient = evaluated([[math.log(6), 0.0, 0.0]], [1], [1.0, 2.0, 4.0])
    assert loss == pytest.approx(math.log(6))
    assert gradient.tolist()[0] == pytest.approx([1 / 2, -5 / 6, 1 / 3])


def test_a_class_without_prior_drops_out_whatever_its_logit() -> None:
    # As in the first test, with a third class whose logit is huge and whose prior is zero.
    loss, gradient = evaluated([[0.0, 1e30, 0.0]], [0], [1.0, 0.0, 3.0])
    assert loss == pytest.approx(math.log(4))
    assert gradient[0, 1] == 0.0
    assert gradient.tolist()[0] == pytest.approx([-0.75, 0.0, 0.75])


def test_a_client_with_one_class_has_nothing_to_learn() -> None:
    # Only π_1 > 0: the softmax is 1 on class 1, the loss is ln 1 = 0 and so is the gradient.
    loss, gradient = evaluated([[3.0, -2.0, 5.0], [0.0, 0.0, 1.0]], [1, 1], [0.0, 7.0, 0.0])
    assert loss == 0.0
    assert torch.equal(gradient, torch.zeros(2, 3))


@pytest.mark.parametrize("scale", [1e-6, 0.5, 3.0, 1e9])
def test_the_scale_of_the_prior_does_not_matter(scale: float) -> None:
    z, y, prior = [[0.3, -1.0, 2.0]], [2], [5.0, 0.0, 1.0]
    one, gradient = evaluated(z, y, prior)
    other, scaled = evaluated(z, y, [p * scale for p in prior])
    # Scores are moved by log(1e9) = 20.7, where neighbours in float32 are 2e-6 apart.
    assert other == pytest.approx(one, abs=1e-5)
    assert torch.allclose(scaled, gradient, rtol=0, atol=1e-5)


def test_equal_priors_give_cross_entropy() -> None:
    z = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0, 1, 2, 2, 0])
    context = LossContext(torch.ones(3), torch.full((3,), 4.0), 1, 1)
    output = Output(z, torch.zeros(5, 1))
    ours, plain = BalancedSoftmax()(output, y, context), CrossEntropy()(output, y, context)
    assert float(ours) == pytest.approx(float(plain), rel=1e-6)


def test_tau_is_the_strength_of_the_prior() -> None:
    # π = (1, 4) with τ = 1/2 is (1, 2), and with τ = 2 it is (1, 16); y = 0 at z = 0: ln 3, ln 17.
    z, y = torch.zeros(1, 2), torch.tensor([0])
    context = LossContext(torch.ones(2), torch.tensor([1.0, 4.0]), 1, 1)
    for tau, total in ((0.5, 3), (2.0, 17)):
        loss = BalancedSoftmax(tau=tau)(Output(z, z), y, context)
        assert float(loss) == pytest.approx(math.log(total), rel=1e-6)


def test_without_tau_it_is_cross_entropy_to_the_bit() -> None:
    # Also where a class has no prior: 0 · log 0 would be NaN.
    z, y = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 2, 1, 0])
    context = LossContext(torch.ones(3), torch.tensor([3.0, 0.0, 1.0]), 1, 1)
    output = Output(z, z)
    assert torch.equal(
        BalancedSoftmax(tau=0)(output, y, context), CrossEntropy()(output, y, context)
    )
