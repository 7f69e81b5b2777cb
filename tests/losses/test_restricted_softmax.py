"""FedRS's loss by hand: cross-entropy of logits that are scaled where the client has no sample."""

from __future__ import annotations

import math

import pytest
import torch
from loss_cases import context, drawn, evaluated

from fedtail.losses import CrossEntropy, LogitCalibration, RestrictedSoftmax
from fedtail.models import Output


def test_value_and_gradient_by_hand() -> None:
    # Class 1 is missing and α = 1/2: z = (0, 2 ln 3) becomes (0, ln 3), the softmax (1/4, 3/4).
    # y = 0: ln 4. The gradient of z_1 is α · 3/4.
    known = context([1.0, 1.0], counts=[5.0, 0.0])
    value, gradient = evaluated(RestrictedSoftmax(), [[0.0, 2 * math.log(3)]], [0], known)
    assert value == pytest.approx(math.log(4))
    assert gradient.tolist()[0] == pytest.approx([-3 / 4, 3 / 8])


def test_it_is_the_clients_own_counts_that_say_what_is_missing() -> None:
    # The prior has class 1 and lacks class 0, which does not matter.
    value, _ = evaluated(
        RestrictedSoftmax(), [[0.0, 2 * math.log(3)]], [0], context([0.0, 9.0], counts=[5.0, 0.0])
    )
    assert value == pytest.approx(math.log(4))


def test_scaling_by_counts_by_hand() -> None:
    # n = (4, 1, 0), α = 1/2: factors (1, 1/2 + 1/8, 1/2).
    loss = RestrictedSoftmax(scaling="counts")
    counts = torch.tensor([4.0, 1.0, 0.0])
    assert loss.factors(counts).tolist() == pytest.approx([1.0, 0.625, 0.5])
    assert loss.factors(torch.tensor([1.0, 1.0, 0.0])).tolist() == [1.0, 1.0, 0.5]
    # z = (0, 8/5 ln 2, 2 ln 5): scaled (0, ln 2, ln 5), the softmax (1/8, 1/4, 5/8); y = 1: ln 4.
    z = [[0.0, 1.6 * math.log(2), 2 * math.log(5)]]
    value, gradient = evaluated(loss, z, [1], context([1.0] * 3, counts=[4.0, 1.0, 0.0]))
    assert value == pytest.approx(math.log(4))
    assert gradient.tolist()[0] == pytest.approx([1 / 8, -0.625 * 3 / 4, 5 / 16])


@pytest.mark.parametrize("scaling", ["missing", "counts"])
@pytest.mark.parametrize("counts", [[3.0, 1.0, 2.0], [7.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
def test_with_alpha_1_it_is_cross_entropy_to_the_bit(scaling: str, counts: list[float]) -> None:
    z, y = drawn(5, 3).requires_grad_(), torch.tensor([0, 1, 2, 2, 0])
    known = context(counts)
    loss = RestrictedSoftmax.model_validate({"alpha": 1, "scaling": scaling})
    ours, plain = loss(Output(z, z), y, known), CrossEntropy()(Output(z, z), y, known)
    assert torch.equal(ours, plain)
    assert torch.equal(*(torch.autograd.grad(value, z)[0] for value in (ours, plain)))


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_with_every_class_present_it_is_cross_entropy(alpha: float) -> None:
    z, y, known = drawn(5, 3), torch.tensor([0, 1, 2, 2, 0]), context([1.0, 9.0, 2.0])
    ours = RestrictedSoftmax(alpha=alpha)(Output(z, z), y, known)
    assert torch.equal(ours, CrossEntropy()(Output(z, z), y, known))


def test_alpha_0_is_not_a_mask() -> None:
    # The missing class has the logit 0, whatever z is: softmax(0, 0) and y = 0 give ln 2. FedLC
    # with absent = 0 masks it with -∞, and its loss is ln 1.
    known = context([5.0, 0.0])
    value, gradient = evaluated(RestrictedSoftmax(alpha=0), [[0.0, 50.0]], [0], known)
    assert value == pytest.approx(math.log(2))
    assert gradient[0, 1] == 0.0
    assert evaluated(LogitCalibration(absent=0), [[0.0, 50.0]], [0], known)[0] == 0.0


@pytest.mark.parametrize("alpha", [-0.1, 1.1])
def test_an_alpha_outside_0_to_1_is_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match="alpha"):
        RestrictedSoftmax(alpha=alpha)
