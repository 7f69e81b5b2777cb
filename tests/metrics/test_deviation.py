"""The deviation of a linear head: by hand, against a real step, its bound, and what FedLC does."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fedtail.losses import LogitCalibration, LossContext
from fedtail.metrics import head_deviation
from fedtail.models import Output


def residual_of(z: Tensor, y: Tensor) -> Tensor:
    return torch.softmax(z, dim=1) - functional.one_hot(y, z.shape[1])


def calibrated_residual(z: Tensor, y: Tensor, tau: float) -> Tensor:
    """Return n times the gradient of FedLC's loss in the logits, by autograd."""
    z = z.clone().requires_grad_()
    counts = torch.bincount(y, minlength=z.shape[1]).float()
    context = LossContext(counts=counts, prior=counts, round=1, rounds=1)
    loss = LogitCalibration(tau=tau, absent=0)(Output(z, z), y, context)
    return torch.autograd.grad(loss, z)[0] * len(y)


def test_by_hand() -> None:
    # Three samples: h = 1 of class 0, h = 2 and h = 4 of class 1; a head at zero over three classes
    # gives p = 1/3. Means: 1 and 3. Without bias k is h for class 0 and 3h for class 1.
    #   class 0: pull 2/3 · 1, push 1/3 · (2 + 4) = 2, D = 3;      N = (2/3) / (2/3) = 1
    #   class 1: pull 2/3 · (6 + 12) = 12, push 1/3 · 3 = 1, D = 1/12;  N = (1/3) / (4/3) = 1/4
    # Bounds: class 0 N · 2/1 and N · 4/1; class 1 N · 3/12 and N · 3/6.
    h, y = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([0, 1, 1])
    found = head_deviation(h, y, residual_of(torch.zeros(3, 3), y), bias=False)
    assert found.classes.tolist() == [0, 1]
    assert found.value.tolist() == pytest.approx([3, 1 / 12])
    assert found.counted.tolist() == pytest.approx([1, 1 / 4])
    assert found.lower.tolist() == pytest.approx([2, 1 / 16])
    assert found.upper.tolist() == pytest.approx([4, 1 / 8])
    # Class 2 is given 1/3 by every sample.
    assert found.absent == pytest.approx(1 / 3)
    # With a bias every k is larger by 1: class 0 (2 + 3 + 5) → D = (8/3) / (4/3) = 2; class 1
    # k = 4, 7, 13 → D = (4/3) / (40/3) = 1/10.
    biased = head_deviation(h, y, residual_of(torch.zeros(3, 3), y), bias=True)
    assert biased.value.tolist() == pytest.approx([2, 1 / 10])
    assert biased.counted.tolist() == pytest.approx([1, 1 / 4])


def samples(counts: list[int], seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return non-negative features, labels, and logits of a random head over them."""
    g = torch.Generator().manual_seed(seed)
    y = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    h = torch.randn(len(y), 5, generator=g).relu() + functional.one_hot(y, 5)
    return h, y, h @ torch.randn(5, len(counts), generator=g) * 0.3


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_above_one_a_step_lowers_the_class_on_its_own_samples(bias: bool, seed: int) -> None:
    h, y, _ = samples([40, 12, 5, 2], seed)
    head = [torch.zeros(4, 5, requires_grad=True)]
    if bias:
        head.append(torch.zeros(4, requires_grad=True))
    z = functional.linear(h, *head)
    steps = torch.autograd.grad(functional.cross_entropy(z, y), head)
    moved = functional.linear(h, *[-g for g in steps])
    change = torch.stack([moved[y == c, c].mean() for c in range(4)])
    found = head_deviation(h, y, residual_of(z.detach(), y), bias)
    assert (change < 0).tolist() == (found.value > 1).tolist()
    # At p = 1/4 the largest class is far below one; the smallest, 2 of 59 samples, is far above.
    assert [bool(found.value[0] > 1), bool(found.value[3] > 1)] == [False, True]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("bias", [True, False])
def test_bound(seed: int, bias: bool) -> None:
    h, y, z = samples([20, 9, 4, 1, 3], seed)
    found = head_deviation(h, y, residual_of(z, y), bias)
    assert bool((found.lower <= found.value * (1 + 1e-12)).all())
    assert bool((found.value <= found.upper * (1 + 1e-12)).all())
    # As tight as it can be if all features are the same.
    same = head_deviation(torch.ones_like(h), y, residual_of(z, y), bias)
    for bound in (same.lower, same.upper, same.counted):
        torch.testing.assert_close(bound, same.value)


@pytest.mark.parametrize("seed", range(5))
def test_calibration_lowers_it_for_the_rarest_and_raises_it_for_the_most_frequent(
    seed: int,
) -> None:
    # z̃_c = z_c − τ n_c^(−1/4): every other class gains on the rarest, so p̃_c < p_c at every sample:
    # it is pushed less and pulled more. The most frequent class is the other way round.
    h, y, z = samples([20, 9, 4, 1, 3], seed)
    plain = head_deviation(h, y, residual_of(z, y)).value
    last = plain
    for tau in (0.5, 1.0, 2.0):
        now = head_deviation(h, y, calibrated_residual(z, y, tau)).value
        assert float(now[3]) < float(last[3])
        assert float(now[0]) > float(last[0])
        last = now
    still = head_deviation(h, y, calibrated_residual(z, y, 0.0)).value
    torch.testing.assert_close(still, plain, rtol=1e-5, atol=0)


def test_a_masked_class_is_not_pushed() -> None:
    h, y, z = samples([6, 3])
    z = torch.cat([z, torch.zeros(len(z), 2)], dim=1)
    assert head_deviation(h, y, residual_of(z, y)).absent > 0.1
    assert head_deviation(h, y, calibrated_residual(z, y, 1.0)).absent == 0


def test_nothing_to_push_or_to_pull() -> None:
    h = torch.ones(2, 1)
    one = head_deviation(h, torch.tensor([1, 1]), torch.tensor([[0.5, -0.5]] * 2))
    assert [x.tolist() for x in one[:5]] == [[1], [0], [0], [0], [0]]
    assert one.absent == 0.5
    # Class 0 is certain on its own sample and half believed on the other's.
    certain = head_deviation(h, torch.tensor([0, 1]), torch.tensor([[0.0, 0.0], [0.5, -0.5]]))
    for got in certain[1:5]:
        assert isinstance(got, Tensor)
        assert got.tolist() == [math.inf, 0]


def test_features_of_zero() -> None:
    y = torch.tensor([0, 1])
    found = head_deviation(torch.zeros(2, 3), y, residual_of(torch.zeros(2, 2), y), bias=False)
    assert found.value.tolist() == found.lower.tolist() == found.upper.tolist() == [0, 0]
    assert found.counted.tolist() == [1, 1]
