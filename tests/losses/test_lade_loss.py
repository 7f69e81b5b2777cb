"""LADE by hand: balanced softmax and the bound of each class of the batch."""

from __future__ import annotations

import math

import pytest
import torch
from loss_cases import context, drawn, evaluated

from fedtail.losses import BalancedSoftmax, LADELoss
from fedtail.models import Output

LN2, LN3 = math.log(2), math.log(3)


@pytest.mark.parametrize("lam", [0.1, 1.0])
def test_value_by_hand(lam: float) -> None:
    # z = 0, π = (1/4, 3/4), one sample of each class. Balanced softmax: (ln 4 + ln 4/3) / 2.
    # A_c = ln e^0 / (2 π_c) = (ln 2, -ln 3/2); means of z are 0. LADER = Σ π_c (A_c + ρ A_c²).
    value, _ = evaluated(LADELoss(lam=lam), [[0.0, 0.0]] * 2, [0, 1], context([1.0, 3.0]))
    a0, a1 = LN2, -math.log(1.5)
    lader = (a0 + 0.01 * a0**2) / 4 + 3 * (a1 + 0.01 * a1**2) / 4
    assert value == pytest.approx((math.log(4) + math.log(4 / 3)) / 2 + lam * lader, rel=1e-5)


def test_lader_and_its_gradient_by_hand() -> None:
    # π = (1/2, 1/2): A_c is the log of the mean of e^{z_c}. Column 0 is (ln 3, 0): A_0 = ln 2, and
    # the mean over class 0 (the first sample) ln 3. Column 1 is 0: nothing.
    # LADER = -1/2 (ln 3 - ln 2 - ρ ln² 2). Softmax of column 0 over samples: (3/4, 1/4).
    z = torch.tensor([[LN3, 0.0], [0.0, 0.0]], requires_grad=True)
    found = LADELoss(rho=0.5).lader(z, torch.tensor([0, 1]), torch.tensor([2.0, 2.0]))
    (gradient,) = torch.autograd.grad(found, z)
    assert float(found.detach()) == pytest.approx(-(LN3 - LN2 - 0.5 * LN2**2) / 2, rel=1e-5)
    pull = 1 + LN2  # 1 + 2 ρ A_0
    assert gradient[:, 0].tolist() == pytest.approx([-(1 - 0.75 * pull) / 2, 0.25 * pull / 2])
    # Column 1: A_1 = 0, so sample 1 gets -1/2 (1 - 1/2) and sample 0 gets 1/2 · 1/2.
    assert gradient[:, 1].tolist() == pytest.approx([0.25, -0.25])


def test_without_lambda_it_is_balanced_softmax_to_the_bit() -> None:
    z, y, known = drawn(5, 3).requires_grad_(), torch.tensor([0, 2, 2, 2, 0]), context([5, 0, 1])
    ours = LADELoss(lam=0)(Output(z, z), y, known)
    plain = BalancedSoftmax()(Output(z, z), y, known)
    assert torch.equal(ours, plain)
    assert torch.equal(*(torch.autograd.grad(value, z)[0] for value in (ours, plain)))


def test_without_lambda_lader_may_overflow() -> None:
    value, _ = evaluated(LADELoss(lam=0), [[1e30, 0.0]], [0], context([1, 1]))
    assert value == 0.0


def test_a_sample_of_a_class_without_prior_has_no_bound() -> None:
    # π = (1, 0), C = 2: A_0 = ln mean e^{z_0 - ln 2}, here -ln 2; class 1 drops out.
    found = LADELoss(rho=0).lader(torch.zeros(2, 2), torch.tensor([0, 1]), torch.tensor([2.0, 0.0]))
    assert float(found) == pytest.approx(-LN2)


def test_the_scale_of_the_prior_does_not_matter() -> None:
    z, y = drawn(5, 3), torch.tensor([0, 1, 2, 2, 0])
    one = LADELoss()(Output(z, z), y, context([5.0, 2.0, 1.0]))
    other = LADELoss()(Output(z, z), y, context([5e4, 2e4, 1e4]))
    torch.testing.assert_close(one, other)


def test_a_class_that_the_batch_lacks_is_left_alone() -> None:
    # Class 1 is in the prior, and no sample of it in the batch: LADER has no estimate for it.
    z, y, prior = drawn(4, 3).requires_grad_(), torch.tensor([0, 2, 2, 0]), torch.ones(3)
    (ours,) = torch.autograd.grad(LADELoss().lader(z, y, prior), z)
    assert torch.equal(ours[:, 1], torch.zeros(4))
    # The authors' code pushes its logits down: the gradient is π_1 (1 + 2 ρ A_1) softmax > 0.
    (theirs,) = torch.autograd.grad(LADELoss(every_class=True).lader(z, y, prior), z)
    assert bool((theirs[:, 1] > 0).all())
    torch.testing.assert_close(theirs[:, [0, 2]], ours[:, [0, 2]])


@pytest.mark.parametrize("every_class", [False, True])
def test_a_class_without_prior_drops_out_whatever_its_logit(every_class: bool) -> None:
    loss = LADELoss(every_class=every_class)
    low, gradient = evaluated(loss, [[0.5, 1.0, 0.0]], [0], context([4.0, 0.0, 2.0]))
    high, _ = evaluated(loss, [[0.5, 1e30, 0.0]], [0], context([4.0, 0.0, 2.0]))
    assert low == high
    assert gradient[0, 1] == 0.0


def test_a_client_with_one_class() -> None:
    # π = 1 on class 1, C = 3. Balanced softmax gives 0. A_1 = ln mean e^{z - ln 3}; for one sample
    # z - ln 3. LADER = -(z - (z - ln 3) - ρ (z - ln 3)²) = -ln 3 + ρ (z - ln 3)².
    value, gradient = evaluated(LADELoss(), [[9.0, 2.0, 9.0]], [1], context([0.0, 7.0, 0.0]))
    assert value == pytest.approx(0.1 * (-LN3 + 0.01 * (2 - LN3) ** 2), rel=1e-5)
    assert gradient.tolist()[0] == pytest.approx([0.0, 0.1 * 0.02 * (2 - LN3), 0.0], rel=1e-4)


def test_large_logits_do_not_overflow() -> None:
    value, gradient = evaluated(LADELoss(), [[1e4, 0.0], [0.0, 1e4]], [0, 1], context([1, 1]))
    assert math.isfinite(value)
    assert bool(torch.isfinite(gradient).all())
