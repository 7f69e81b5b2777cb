"""FedLC's loss by hand: -log of exp(z_y - τ n_y^(-1/4)) / Σ exp(z_c - τ n_c^(-1/4))."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fedtail.losses import CrossEntropy, LogitCalibration, LossContext
from fedtail.models import Output

Rows = Sequence[Sequence[float]]


def evaluated(
    loss: LogitCalibration, z: Rows, y: list[int], n: list[float]
) -> tuple[float, Tensor]:
    logits = torch.tensor(z, requires_grad=True)
    value = loss(Output(logits, torch.zeros(len(y), 1)), torch.tensor(y), context(n))
    (gradient,) = torch.autograd.grad(value, logits)
    return float(value.detach()), gradient


def context(n: list[float]) -> LossContext:
    # The prior is another one on purpose: the margins come from the client's own counts.
    return LossContext(torch.tensor(n), torch.ones(len(n)), 1, 1)


def test_value_and_gradient_by_hand() -> None:
    # n = (1, 16): n^(-1/4) = (1, 1/2). τ = 2 ln 3 lowers the logits 0 by (2 ln 3, ln 3), so that
    # softmax = (1/9, 1/3) / (4/9) = (1/4, 3/4). y = 0: loss ln 4, gradient (-3/4, 3/4).
    value, gradient = evaluated(LogitCalibration(tau=2 * math.log(3)), [[0.0, 0.0]], [0], [1, 16])
    assert value == pytest.approx(math.log(4))
    assert gradient.tolist()[0] == pytest.approx([-0.75, 0.75])


@pytest.mark.parametrize("tau", [0.3, 1.0, 5.0])
def test_it_is_cross_entropy_of_shifted_logits(tau: float) -> None:
    z, y, n = (
        torch.randn(6, 4, generator=generator()),
        torch.tensor([0, 1, 2, 3, 0, 2]),
        [9, 1, 4, 2],
    )
    shift = torch.tensor([-tau * c**-0.25 for c in n])
    ours = LogitCalibration(tau=tau)(Output(z, z), y, context([float(c) for c in n]))
    assert torch.allclose(ours, functional.cross_entropy(z + shift, y), rtol=1e-6)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("n", [[5.0, 2.0, 1.0], [5.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
def test_without_tau_it_is_cross_entropy_to_the_bit(n: list[float]) -> None:
    # Taken literally, 0 · 0^(-1/4) = 0 · ∞ is NaN. It is the softmax over all classes instead.
    z, y = (
        torch.randn(5, 3, generator=generator(), requires_grad=True),
        torch.tensor([0, 1, 2, 2, 0]),
    )
    ours = LogitCalibration(tau=0)(Output(z, z), y, context(n))
    plain = CrossEntropy()(Output(z, z), y, context(n))
    assert torch.equal(ours, plain)
    assert torch.equal(*(torch.autograd.grad(loss, z)[0] for loss in (ours, plain)))


@pytest.mark.parametrize("tau", [0.5, 1.0, 10.0])
@pytest.mark.parametrize("count", [1.0, 7.0, 4096.0])
def test_equal_counts_give_cross_entropy(tau: float, count: float) -> None:
    # All logits are lowered by the same number, which a softmax does not see.
    z, y = torch.randn(5, 3, generator=generator()), torch.tensor([0, 1, 2, 2, 0])
    ours = LogitCalibration(tau=tau)(Output(z, z), y, context([count] * 3))
    assert float(ours) == pytest.approx(float(functional.cross_entropy(z, y)), rel=1e-5)


@pytest.mark.parametrize("tau", [1e-6, 1.0])
@pytest.mark.parametrize("exclude", [False, True])
def test_a_masked_class_gets_no_gradient_whatever_its_logit(tau: float, exclude: bool) -> None:
    loss = LogitCalibration(tau=tau, absent=0, exclude_true_class=exclude)
    n = [4.0, 0.0, 4.0, 2.0]
    low, gradient = evaluated(loss, [[0.5, -3.0, 0.0, 1.0], [0.0, 2.0, 1.0, 0.0]], [0, 2], n)
    high, _ = evaluated(loss, [[0.5, 1e30, 0.0, 1.0], [0.0, -1e30, 1.0, 0.0]], [0, 2], n)
    assert low == high
    assert gradient[:, 1].tolist() == [0.0, 0.0]
    assert bool((gradient[:, [0, 2, 3]] != 0).all())


@pytest.mark.parametrize("exclude", [False, True])
def test_a_client_with_one_class_has_nothing_to_learn(exclude: bool) -> None:
    # One logit is left: -log 1 = 0. Without y the sum is empty, and the loss is 0 as well.
    loss = LogitCalibration(absent=0, exclude_true_class=exclude)
    value, gradient = evaluated(loss, [[3.0, -2.0, 5.0]], [1], [0.0, 7.0, 0.0])
    assert value == 0.0
    assert torch.equal(gradient, torch.zeros(1, 3))


def test_the_literal_form_has_no_floor() -> None:
    # τ = 0 and z = (2.04, 0, 0) with y = 0: without y the loss is ln 2 - 2.04 = -1.347, with y it
    # is ln(1 + e^-1.347) = 0.231. Their gradients for y: -1, and p_y - 1 = -0.206.
    z, n = [[2.04, 0.0, 0.0]], [1.0, 1.0, 1.0]
    literal, slope = evaluated(LogitCalibration(tau=0, exclude_true_class=True), z, [0], n)
    inclusive, bounded = evaluated(LogitCalibration(tau=0), z, [0], n)
    assert literal == pytest.approx(math.log(2) - 2.04, rel=1e-5)
    assert inclusive == pytest.approx(math.log1p(math.exp(literal)), rel=1e-5)
    assert literal < 0 < inclusive
    assert slope.tolist()[0] == pytest.approx([-1.0, 0.5, 0.5])
    # A second sample, z = 0: ln 2. The loss is the mean of both.
    both, _ = evaluated(
        LogitCalibration(tau=0, exclude_true_class=True), [*z, [0.0, 0.0, 0.0]], [0, 1], n
    )
    assert both == pytest.approx(math.log(2) - 1.02, rel=1e-5)
    assert float(bounded[0, 0]) == pytest.approx(-0.206, abs=1e-3)


def test_the_inclusive_form_is_never_negative() -> None:
    z = 30 * torch.randn(200, 4, generator=generator())
    y = torch.arange(200) % 3
    for row, label in zip(z, y, strict=True):
        value = LogitCalibration()(Output(row[None], row[None]), label[None], context([9, 1, 2, 0]))
        assert float(value) >= 0


def test_more_samples_of_y_lower_the_loss_and_of_others_raise_it() -> None:
    def loss(*n: float) -> float:
        return evaluated(LogitCalibration(), [[0.2, -0.1, 0.4]], [0], list(n))[0]

    assert loss(1, 5, 5) > loss(2, 5, 5) > loss(100, 5, 5)
    assert loss(5, 1, 5) < loss(5, 2, 5) < loss(5, 100, 5)


def test_a_label_that_the_client_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="class 2"):
        evaluated(LogitCalibration(), [[0.0, 0.0, 0.0]], [2], [3.0, 1.0, 0.0])


def test_half_precision_logits_stay_finite() -> None:
    z = torch.tensor([[60000.0, -60000.0, 1.0]], dtype=torch.float16, requires_grad=True)
    masking = LogitCalibration(absent=0)
    value = masking(Output(z, z), torch.tensor([0]), context([4.0, 0.0, 1.0]))
    (gradient,) = torch.autograd.grad(value, z)
    assert bool(torch.isfinite(value))
    assert float(gradient[0, 1]) == 0.0


def test_an_absent_class_counts_as_some_samples() -> None:
    # n = (1, 16, 0) with one sample for the absent class: n^(-1/4) = (1, 1/2, 1), and τ = 2 ln 3
    # makes (1/9, 1/3, 1/9) of the logits 0, softmax (1/5, 3/5, 1/5). Counted as 1/16 it is
    # 16^(1/4) = 2 margins, 3^-4: (9, 27, 1) / 37.
    tau, z = 2 * math.log(3), [[0.0, 0.0, 0.0]]
    value, gradient = evaluated(LogitCalibration(tau=tau, absent=1), z, [1], [1, 16, 0])
    assert value == pytest.approx(math.log(5 / 3))
    assert gradient.tolist()[0] == pytest.approx([0.2, -0.4, 0.2])
    value, gradient = evaluated(LogitCalibration(tau=tau, absent=1 / 16), z, [1], [1, 16, 0])
    assert value == pytest.approx(math.log(37 / 27))
    assert gradient.tolist()[0] == pytest.approx([9 / 37, -10 / 37, 1 / 37])


def test_a_tiny_count_is_nearly_the_mask() -> None:
    # 1e-8 samples, as a public re-implementation has it: a margin of 100 τ.
    z, n = [[0.5, 2.0, 0.0]], [4.0, 0.0, 2.0]
    found = [evaluated(LogitCalibration(absent=count), z, [0], n)[0] for count in (1e-8, 0)]
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_every_class_counted_alike_is_cross_entropy_where_one_is_absent() -> None:
    # One sample of each class that is there, and as much for the absent one.
    value, _ = evaluated(LogitCalibration(tau=3.0, absent=1), [[1.0, 0.0, 2.0]], [0], [1, 0, 1])
    plain = functional.cross_entropy(torch.tensor([[1.0, 0.0, 2.0]]), torch.tensor([0]))
    assert value == pytest.approx(float(plain), rel=1e-6)


@pytest.mark.parametrize("field", ["tau", "absent"])
def test_negative_numbers_are_refused(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        LogitCalibration.model_validate({"name": "logit_calibration", field: -0.1})
