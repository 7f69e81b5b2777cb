"""RIDE by hand: the experts' own losses, less their distance from the mean."""

from __future__ import annotations

import math

import pytest
import torch
from loss_cases import context, drawn
from torch import Tensor

from fedtail.losses import BalancedSoftmax, CrossEntropy, LDAMLoss, LocalLoss, RIDELoss
from fedtail.models import Output

Y = torch.tensor([0, 1, 2, 2, 0])
KNOWN = context([9.0, 1.0, 4.0])


def several(experts: Tensor) -> Output:
    """Return what a model of these experts gives."""
    return Output(experts.mean(0), torch.zeros(experts.shape[1], 1), experts)


def test_value_and_gradient_by_hand() -> None:
    # Experts (0, 0) and (0, 2 ln 3), mean (0, ln 3): q_1 = (1/2, 1/2), q_2 = (1/10, 9/10) and
    # p = (1/4, 3/4). y = 0: cross-entropies ln 2 + ln 10. With T = 1:
    # KL(p, q_1) = 1/4 ln 1/2 + 3/4 ln 3/2, KL(p, q_2) = 1/4 ln 5/2 + 3/4 ln 5/6.
    z = torch.tensor([[[0.0, 0.0]], [[0.0, 2 * math.log(3)]]], requires_grad=True)
    loss = RIDELoss(base=CrossEntropy(), diversity=0.4, spread=0)
    value = loss(several(z), torch.tensor([0]), context([1.0, 5.0]))
    (gradient,) = torch.autograd.grad(value, z)
    apart = [
        math.log(1 / 2) / 4 + 3 * math.log(3 / 2) / 4,
        math.log(5 / 2) / 4 + 3 * math.log(5 / 6) / 4,
    ]
    assert float(value.detach()) == pytest.approx(math.log(20) - 0.4 * sum(apart), rel=1e-5)
    # The mean is constant: dKL/dz_i = q_i - p. Expert 1: (q_1 - e_0) - 0.4 (1/4, -1/4).
    assert gradient[0, 0].tolist() == pytest.approx([-0.5 - 0.1, 0.5 + 0.1])
    # Expert 2: (-9/10, 9/10) - 0.4 (1/10 - 1/4, 9/10 - 3/4).
    assert gradient[1, 0].tolist() == pytest.approx([-0.9 + 0.06, 0.9 - 0.06])


def test_temperatures_by_hand() -> None:
    # π = (3/4, 1/4), C = 2, γ = 1/2: β = 1/2 · 2 π + 1/2 = (5/4, 3/4), so T = (1, 3/5).
    loss = RIDELoss(spread=0.5)
    assert loss.temperatures(torch.tensor([3.0, 1.0])).tolist() == pytest.approx([1.0, 0.6])
    assert RIDELoss(spread=0, temperature=2).temperatures(torch.ones(3)).tolist() == [2.0] * 3
    # A class without samples keeps (1 - γ) / max: never zero.
    lone = RIDELoss().temperatures(torch.tensor([0.0, 8.0]))
    assert lone.tolist() == pytest.approx([0.95 / 1.05, 1.0])


def test_temperature_divides_logits_and_multiplies_the_term_by_its_square() -> None:
    # Twice the logits at T = 2 are the same distributions; the term counts four times.
    z = drawn(3, 5, 3)
    bare, warm = (
        RIDELoss(base=CrossEntropy(), spread=0, temperature=t, diversity=1) for t in (1.0, 2.0)
    )
    own = RIDELoss(base=CrossEntropy(), diversity=0)
    once = own(several(z), Y, KNOWN) - bare(several(z), Y, KNOWN)
    twice = own(several(2 * z), Y, KNOWN) - warm(several(2 * z), Y, KNOWN)
    torch.testing.assert_close(twice, 4 * once)


def test_class_wise_temperatures_in_the_term() -> None:
    # T = (1, 3/5) as above, mean T 4/5. The logits (0, 3/5 a) are (0, a) when divided.
    z = torch.tensor([[[0.0, 0.0]], [[0.0, 0.6 * 2 * math.log(3)]]])
    loss = RIDELoss(base=CrossEntropy(), diversity=1.0, spread=0.5)
    bare = RIDELoss(base=CrossEntropy(), diversity=0.0)
    known = context([3.0, 1.0])
    term = bare(several(z), torch.tensor([0]), known) - loss(several(z), torch.tensor([0]), known)
    # As in the first test, times (4/5)².
    apart = math.log(5 / 4) / 4 + 3 * math.log(5 / 4) / 4
    assert float(term) == pytest.approx(0.64 * apart, rel=1e-5)


@pytest.mark.parametrize("diversity", [0.0, 0.45])
@pytest.mark.parametrize("stacked", [False, True])
def test_one_expert_gives_ldam_to_the_bit(diversity: float, stacked: bool) -> None:
    z = drawn(5, 3).requires_grad_()
    output = Output(z, z, z[None] if stacked else None)
    ours = RIDELoss(diversity=diversity)(output, Y, KNOWN)
    plain = LDAMLoss()(Output(z, z), Y, KNOWN)
    assert torch.equal(ours, plain)
    assert torch.equal(*(torch.autograd.grad(value, z)[0] for value in (ours, plain)))


@pytest.mark.parametrize("base", [LDAMLoss(), BalancedSoftmax(), RIDELoss(base=CrossEntropy())])
def test_without_diversity_it_is_the_sum_of_the_experts_losses(base: LocalLoss) -> None:
    z = drawn(3, 5, 3)
    each = sum(float(base(Output(one, one), Y, KNOWN)) for one in z)
    found = RIDELoss(base=base, diversity=0)(several(z), Y, KNOWN)
    assert float(found) == pytest.approx(each, rel=1e-6)


def test_equal_experts_are_paid_nothing() -> None:
    z = drawn(1, 5, 3).expand(3, 5, 3)
    found = RIDELoss(diversity=5.0)(several(z), Y, KNOWN)
    torch.testing.assert_close(found, 3 * LDAMLoss()(Output(z[0], z[0]), Y, KNOWN))


def test_the_base_can_be_named_with_its_fields() -> None:
    loss = LocalLoss.model_validate({"name": "ride", "base": {"margin": 0.1}})
    assert loss == RIDELoss(base=LDAMLoss(margin=0.1))
    loss = LocalLoss.model_validate({"name": "ride", "base": "balanced_softmax"})
    assert loss == RIDELoss(base=BalancedSoftmax())
    assert LocalLoss.model_validate(loss.describe()) == loss
