"""Binary cross-entropy by hand."""

from __future__ import annotations

import math

import pytest
import torch
from loss_cases import context, evaluated

from fedtail.losses import BinaryCrossEntropy
from fedtail.losses.binary_cross_entropy import is_class


def test_value_and_gradient_by_hand() -> None:
    # σ(ln 3) = 3/4, σ(0) = 1/2. Sample 1, y = 0: -ln 3/4 - ln 1/2 = ln 8/3, gradient (-1/4, 1/2).
    # Sample 2, y = 1: -ln 1/4 - ln 1/2 = ln 8, gradient (3/4, -1/2). The batch is their mean.
    z = [[math.log(3), 0.0], [math.log(3), 0.0]]
    value, gradient = evaluated(BinaryCrossEntropy(), z, [0, 1], context([1.0, 1.0]))
    assert value == pytest.approx((math.log(8 / 3) + math.log(8)) / 2)
    assert gradient.flatten().tolist() == pytest.approx([-1 / 8, 1 / 4, 3 / 8, -1 / 4])


def test_huge_logits_stay_finite() -> None:
    value, gradient = evaluated(BinaryCrossEntropy(), [[1e4, -1e4]], [1], context([1.0, 1.0]))
    assert value == 2e4
    assert gradient.tolist() == [[1.0, -1.0]]


def test_which_class_a_sample_is_of() -> None:
    assert is_class(torch.tensor([1, 0]), 3).tolist() == [
        [False, True, False],
        [True, False, False],
    ]
