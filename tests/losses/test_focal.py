"""Focal loss by hand: -(1 - p_y)^γ ln p_y."""

from __future__ import annotations

import math

import pytest
import torch
from loss_cases import context, drawn, evaluated

from fedtail.losses import CrossEntropy, Focal
from fedtail.models import Output

NOTHING = context([1.0, 1.0])
# softmax(0, ln 3) = (1/4, 3/4)
QUARTERS = [[0.0, math.log(3)]]


def test_value_and_gradient_by_hand() -> None:
    # y = 0, γ = 2: (3/4)² ln 4. dL/dp = 2 (3/4) ln(1/4) - (3/4)² / (1/4) = -(3/2) ln 4 - 9/4, and
    # dp/dz = p (1 - p) (1, -1) = 3/16 (1, -1).
    value, gradient = evaluated(Focal(), QUARTERS, [0], NOTHING)
    assert value == pytest.approx(9 / 16 * math.log(4))
    slope = 3 / 16 * (1.5 * math.log(4) + 9 / 4)
    assert gradient.tolist()[0] == pytest.approx([-slope, slope])


def test_an_easy_sample_counts_less() -> None:
    # y = 1: p_y = 3/4, so (1/4)² ln(4/3).
    value, _ = evaluated(Focal(), QUARTERS, [1], NOTHING)
    assert value == pytest.approx(math.log(4 / 3) / 16)


def test_a_batch_is_the_mean_of_its_samples() -> None:
    # One hard and one easy sample, as above: each has its own factor.
    value, _ = evaluated(Focal(), QUARTERS * 2, [0, 1], NOTHING)
    assert value == pytest.approx((9 / 16 * math.log(4) + math.log(4 / 3) / 16) / 2)


def test_a_detached_factor_scales_the_gradient_of_cross_entropy() -> None:
    # The value is the same; the gradient is (3/4)² (p - e_y).
    value, gradient = evaluated(Focal(detach=True), QUARTERS, [0], NOTHING)
    assert value == pytest.approx(9 / 16 * math.log(4))
    assert gradient.tolist()[0] == pytest.approx([-27 / 64, 27 / 64])


@pytest.mark.parametrize("detach", [False, True])
def test_without_gamma_it_is_cross_entropy_to_the_bit(detach: bool) -> None:
    z, y = drawn(7, 3).requires_grad_(), torch.tensor([0, 1, 2, 2, 0, 1, 1])
    ours = Focal(gamma=0, detach=detach)(Output(z, z), y, NOTHING)
    plain = CrossEntropy()(Output(z, z), y, NOTHING)
    assert torch.equal(ours, plain)
    assert torch.equal(*(torch.autograd.grad(loss, z)[0] for loss in (ours, plain)))


@pytest.mark.parametrize("gamma", [0.01, 0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("detach", [False, True])
def test_a_sample_that_is_certain_gives_nothing_and_no_nan(gamma: float, detach: bool) -> None:
    # p_y = 1 in float32: the slope of (1 - p)^γ is infinite for γ < 1, times a loss of 0.
    value, gradient = evaluated(Focal(gamma=gamma, detach=detach), [[200.0, 0.0]], [0], NOTHING)
    assert value == 0.0
    assert torch.equal(gradient, torch.zeros(1, 2))


def test_a_sample_that_is_certainly_wrong_is_cross_entropy() -> None:
    # p_y = e^-200 is 0 in float32: the factor is 1, and the loss 200.
    value, gradient = evaluated(Focal(), [[0.0, 200.0]], [0], NOTHING)
    assert value == pytest.approx(200.0)
    assert gradient.tolist()[0] == pytest.approx([-1.0, 1.0])


def test_a_negative_gamma_is_refused() -> None:
    with pytest.raises(ValueError, match="gamma"):
        Focal(gamma=-1)
