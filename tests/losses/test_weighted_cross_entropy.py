"""Cross-entropy with the server's class weights."""

from __future__ import annotations

import math

import torch

from fedtail import WeightedCrossEntropy
from fedtail.losses import CrossEntropy, LossContext
from fedtail.models import Output

Z = torch.tensor([[1.0, -1.0, 0.5], [0.0, 2.0, 0.0], [0.3, 0.1, -0.2]], requires_grad=True)
Y = torch.tensor([0, 2, 2])


def context(weights: list[float] | None) -> LossContext:
    told = None if weights is None else torch.tensor(weights)
    return LossContext(torch.ones(3), torch.ones(3), 1, 1, told)


def test_it_is_divided_by_the_size_of_the_batch() -> None:
    # Two samples of loss ln 2 and weights 1 and 3: (1 + 3) / 2 · ln 2. Divided by the sum of the
    # weights, as torch does, it would be ln 2.
    output = Output(torch.zeros(2, 2), torch.zeros(2, 1))
    loss = WeightedCrossEntropy()(output, torch.tensor([0, 1]), context([1.0, 3.0]))
    assert math.isclose(float(loss), 2 * math.log(2), rel_tol=1e-6)


def test_a_class_of_weight_zero_gives_no_gradient() -> None:
    loss = WeightedCrossEntropy()(Output(Z, Z), Y, context([1.0, 1.0, 0.0]))
    (g,) = torch.autograd.grad(loss, Z)
    assert bool(g[0].any())
    assert not g[1:].any()


def test_without_weights_it_is_cross_entropy_to_the_bit() -> None:
    found = [
        (loss, *torch.autograd.grad(loss, Z))
        for loss in (
            WeightedCrossEntropy()(Output(Z, Z), Y, context(None)),
            CrossEntropy()(Output(Z, Z), Y, context(None)),
        )
    ]
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
