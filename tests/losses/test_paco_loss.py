"""PaCo's loss by hand: class centres and samples in one softmax."""

from __future__ import annotations

import math

import pytest
import torch
from loss_cases import context, drawn
from torch import Tensor

from fedtail.losses import BalancedSoftmax, PaCoLoss
from fedtail.models import Output

# Two samples, of class 0 and 1, at right angles; one key of class 0 like the first.
Q = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
KEY = torch.tensor([[1.0, 0.0]])
Y = torch.tensor([0, 1])
SOFT = PaCoLoss(alpha=0.5, temperature=1.0)


def contrast(loss: PaCoLoss, prior: list[float], keys: Tensor, labels: list[int]) -> float:
    told = torch.tensor(labels, dtype=torch.int64)
    return float(loss.contrast(torch.zeros(2, 2), Y, Q, keys, told, torch.tensor(prior)))


def test_value_by_hand() -> None:
    # Centre logits 0, τ = 1, α = 1/2, β = γ = 1.
    # Sample 0 sees 2 centres, the other query (s = 0) and the key (s = 1): D = 3 + e. The key is
    # positive: 2/3 · (ln D + 1/2 (ln D - 1)) = ln D - 1/3.
    # Sample 1 sees 2 centres, query and key at s = 0: D = 4, no positive: ln 4.
    expected = (math.log(3 + math.e) - 1 / 3 + math.log(4)) / 2
    assert contrast(SOFT, [1.0, 1.0], KEY, [0]) == pytest.approx(expected)


def test_the_prior_is_in_the_centres() -> None:
    # π = (1, 3): e^c = (1, 3). Sample 0: D = 1 + 3 + 1 + e, 2/3 (ln D + 1/2 (ln D - 1)).
    # Sample 1: D = 6, its centre has e^c = 3: ln 2.
    expected = (math.log(5 + math.e) - 1 / 3 + math.log(2)) / 2
    assert contrast(SOFT, [1.0, 3.0], KEY, [0]) == pytest.approx(expected)


def test_beta_and_gamma_by_hand() -> None:
    # β = 2, γ = 3. Sample 0: D = 2 + 3 (1 + e), (2 ln D + 1/2 (ln D - 1)) / (5/2) = ln D - 1/5.
    # Sample 1: D = 2 + 3 · 2, ln 8.
    loss = PaCoLoss(alpha=0.5, beta=2.0, gamma=3.0, temperature=1.0)
    expected = (math.log(5 + 3 * math.e) - 1 / 5 + math.log(8)) / 2
    assert contrast(loss, [1.0, 1.0], KEY, [0]) == pytest.approx(expected)


def test_temperature_by_hand() -> None:
    # τ = 1/2: the key has s = 2. Sample 0: ln(3 + e²) - 1/2 · 2 · 2/3.
    loss = PaCoLoss(alpha=0.5, temperature=0.5)
    expected = (math.log(3 + math.e**2) - 2 / 3 + math.log(4)) / 2
    assert contrast(loss, [1.0, 1.0], KEY, [0]) == pytest.approx(expected)


def test_a_sample_is_not_compared_with_itself() -> None:
    # Without keys: D = 2 + 1 for both, no positives.
    empty = torch.zeros(0, 2)
    assert contrast(SOFT, [1.0, 1.0], empty, []) == pytest.approx(math.log(3))


def test_by_itself_it_compares_the_features_of_the_batch() -> None:
    # Features of any length count by their direction. Of three samples, 0 and 2 are of one class
    # and alike: D = 2 + 1 + e, ln D - 1/3 for both; sample 1: D = 2 + 2, ln 4.
    features = torch.tensor([[2.0, 0.0], [0.0, 0.1], [7.0, 0.0]])
    output = Output(torch.zeros(3, 2), features)
    found = SOFT(output, torch.tensor([0, 1, 0]), context([1.0, 1.0]))
    expected = (2 * (math.log(3 + math.e) - 1 / 3) + math.log(4)) / 3
    assert float(found) == pytest.approx(expected)


def test_without_samples_it_is_balanced_softmax() -> None:
    z, h, y = drawn(6, 4).requires_grad_(), drawn(6, 5), torch.tensor([0, 1, 3, 3, 0, 1])
    known = context([9.0, 2.0, 0.0, 1.0])
    ours = PaCoLoss(alpha=0, gamma=0)(Output(z, h), y, known)
    plain = BalancedSoftmax()(Output(z, h), y, known)
    torch.testing.assert_close(ours, plain)
    torch.testing.assert_close(*(torch.autograd.grad(value, z)[0] for value in (ours, plain)))


def test_gradient_of_the_queries_by_hand() -> None:
    # As in the first test, D = 3 + e for sample 0 and 4 for sample 1; the loss is the mean of
    # ln D_0 - 1/3 s_0k and ln D_1. For q_0: 1/2 (1/D q_1 + e/D k - 1/3 k) from sample 0 and
    # 1/2 · 1/4 q_1 from sample 1; for q_1: 1/2 · 1/D q_0 and 1/2 · 1/4 (q_0 + k).
    queries = Q.clone().requires_grad_()
    value = SOFT.contrast(torch.zeros(2, 2), Y, queries, KEY, torch.tensor([0]), torch.ones(2))
    (gradient,) = torch.autograd.grad(value, queries)
    d = 3 + math.e
    expected = [[(math.e / d - 1 / 3) / 2, 1 / (2 * d) + 1 / 8], [1 / (2 * d) + 1 / 4, 0.0]]
    # Sums of numbers up to 1/2, in float32.
    torch.testing.assert_close(gradient, torch.tensor(expected), rtol=0, atol=1e-6)


def test_a_class_without_prior_drops_out_whatever_its_logit() -> None:
    z = torch.tensor([[0.0, 5.0], [0.0, -5.0]], requires_grad=True)
    y, labels = torch.tensor([0, 0]), torch.tensor([0])
    value = SOFT.contrast(z, y, Q, KEY, labels, torch.tensor([4.0, 0.0]))
    (gradient,) = torch.autograd.grad(value, z)
    assert math.isfinite(float(value.detach()))
    assert gradient[:, 1].tolist() == [0.0, 0.0]


def test_beta_must_be_positive() -> None:
    # A sample without positives would be divided by nothing.
    with pytest.raises(ValueError, match="beta"):
        PaCoLoss(beta=0)
