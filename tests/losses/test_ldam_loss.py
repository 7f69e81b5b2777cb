"""LDAM by hand: margins s m (n_min / n_c)^(1/4), and the weights of its last rounds."""

from __future__ import annotations

import math

import pytest
import torch
from loss_cases import context, drawn, evaluated
from torch.nn import functional

from fedtail.losses import CrossEntropy, LDAMLoss
from fedtail.models import CosineHead, Output

Y = torch.tensor([0, 1, 2, 2, 0])


def test_value_and_gradient_by_hand() -> None:
    # n = (16, 1): Δ = 1/2 · ((1/16)^(1/4), 1) = (1/4, 1/2). s = 2 ln 3, so that the margins are
    # (ln 3 / 2, ln 3). y = 1, z = (0, 2 ln 3): z - margin = (0, ln 3), the softmax (1/4, 3/4).
    loss = LDAMLoss(scale=2 * math.log(3), drw=False)
    value, gradient = evaluated(loss, [[0.0, 2 * math.log(3)]], [1], context([16.0, 1.0]))
    assert value == pytest.approx(math.log(4 / 3), rel=1e-5)
    assert gradient.tolist()[0] == pytest.approx([1 / 4, -1 / 4], rel=1e-5)
    # y = 0, z = (0, 0): (-ln 3 / 2, 0), so that y loses by √3: ln(1 + √3).
    value, _ = evaluated(loss, [[0.0, 0.0]], [0], context([16.0, 1.0]))
    assert value == pytest.approx(math.log(1 + math.sqrt(3)))


def test_on_a_cosine_head_it_is_the_formula_of_the_paper() -> None:
    # CE(s (cos θ - Δ_y e_y), y) with s inside the loss and Δ from n = (9, 1, 4).
    head = CosineHead(6, 3, scale=30.0)
    h, n = drawn(5, 6), torch.tensor([9.0, 1.0, 4.0])
    cosine = functional.cosine_similarity(h[:, None], head.weight.T[None], dim=2)
    delta = 0.5 * (1 / n) ** 0.25
    expected = functional.cross_entropy(30 * (cosine - delta * functional.one_hot(Y, 3)), Y)
    found = LDAMLoss()(Output(head(h), h), Y, context([9.0, 1.0, 4.0], round=1, rounds=9))
    torch.testing.assert_close(found, expected)


def test_a_class_without_samples_stands_for_a_tenth() -> None:
    # n = (1.6, 0 → 0.1): n_min / n = (1/16, 1), margins (1/4, 1/2).
    known = context([1.6, 0.0])
    n = torch.where(known.prior > 0, known.prior, 0.1)
    assert LDAMLoss().margins(n).tolist() == pytest.approx([0.25, 0.5])
    value, gradient = evaluated(LDAMLoss(scale=4, drw=False), [[0.0, 0.0]], [0], known)
    assert value == pytest.approx(math.log(1 + math.e))
    assert gradient.tolist()[0] == pytest.approx([1 / (1 + math.e) - 1, math.e / (1 + math.e)])


def test_the_weights_of_drw_by_hand() -> None:
    # β = 1/2, n = (1, 2): (1/2) / (1/2, 3/4) = (1, 2/3). z = (0, ln 3) for both, without margin:
    # ln 4 for y = 0, ln 4/3 for y = 1; weighted mean (ln 4 + 2/3 ln 4/3) / (5/3).
    loss = LDAMLoss(margin=0, beta=0.5)
    z = [[0.0, math.log(3)]] * 2
    late, _ = evaluated(loss, z, [0, 1], context([1.0, 2.0], round=3, rounds=3))
    assert late == pytest.approx((math.log(4) + 2 / 3 * math.log(4 / 3)) / (5 / 3))
    early, _ = evaluated(loss, z, [0, 1], context([1.0, 2.0], round=2, rounds=3))
    assert early == pytest.approx((math.log(4) + math.log(4 / 3)) / 2)


def test_the_weights_are_exact_where_one_minus_beta_to_the_n_is_nearly_nothing() -> None:
    # β = 0.9999, n = 0.1: 1 - β^n = 1.00005e-5, which float32 has to one part in 200 only if the
    # subtraction is carried out.
    weights = LDAMLoss().weights(torch.tensor([0.1, 10_000.0]), 9, 9)
    assert weights is not None
    expected = [(1 - 0.9999) / (1 - 0.9999**n) for n in (0.1, 10_000.0)]
    assert weights.tolist() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("rounds", "first"), [(9, 7), (3, 3), (100, 68), (1, None), (2, None)])
def test_drw_begins_after_two_thirds_of_the_rounds(rounds: int, first: int | None) -> None:
    n = torch.tensor([1.0, 5.0])
    begun = [r for r in range(1, rounds + 1) if LDAMLoss().weights(n, r, rounds) is not None]
    assert begun == ([] if first is None else list(range(first, rounds + 1)))


def test_drw_can_begin_at_once_or_never() -> None:
    n = torch.tensor([1.0, 5.0])
    assert LDAMLoss(drw_start=0).weights(n, 1, 10) is not None
    assert LDAMLoss(drw_start=1).weights(n, 10, 10) is None
    assert LDAMLoss(drw=False).weights(n, 10, 10) is None
    assert LDAMLoss(beta=0).weights(n, 10, 10) is None


def test_without_margin_and_weights_it_is_cross_entropy_to_the_bit() -> None:
    z, known = drawn(5, 3).requires_grad_(), context([5.0, 0.0, 1.0])
    ours = LDAMLoss(margin=0, drw=False)(Output(z, z), Y, known)
    plain = CrossEntropy()(Output(z, z), Y, known)
    assert torch.equal(ours, plain)
    assert torch.equal(*(torch.autograd.grad(value, z)[0] for value in (ours, plain)))


def test_the_margins_do_not_see_the_scale_of_the_prior() -> None:
    n = torch.tensor([100.0, 7.0, 1.0])
    torch.testing.assert_close(LDAMLoss().margins(n), LDAMLoss().margins(n * 1e-3))


def test_counts_come_from_the_prior_not_from_the_client() -> None:
    loss, z = LDAMLoss(drw=False), [[0.3, -0.2]]
    one = evaluated(loss, z, [0], context([16.0, 1.0], counts=[1.0, 16.0]))
    other = evaluated(loss, z, [0], context([16.0, 1.0], counts=[3.0, 0.0]))
    assert one[0] == other[0]
    assert one[0] != evaluated(loss, z, [0], context([1.0, 16.0]))[0]
