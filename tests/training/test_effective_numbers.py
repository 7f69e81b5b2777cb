"""Effective numbers: how many samples count."""

from __future__ import annotations

import pytest
import torch

from fedtail.training.effective_numbers import (
    effective_numbers,
    without_leaps,
    without_outliers,
)

DRAW = torch.Generator().manual_seed(0)


def test_by_hand() -> None:
    # Class 0: 0, 1, 5 on a line, mean 2: directions -1, -1, 1; their mean -1/3, squared 1/9.
    # Unbiased: 3 / (1 + 3/9) = 9/4. One batch of the code: 1 / (1/9) = 9. Class 1: one sample.
    h, y = torch.tensor([[0.0], [1.0], [5.0], [7.0]]), torch.tensor([0, 0, 0, 1])
    assert effective_numbers(h, y, 3, "unbiased", 32).tolist() == pytest.approx([2.25, 1.0, 0.0])
    assert effective_numbers(h, y, 3, "code", 32).tolist() == pytest.approx([9.0, 1.0, 0.0])
    assert effective_numbers(h, y, 3, "counts", 32).tolist() == [3.0, 1.0, 0.0]
    # Batches of two: directions -1 and -1 are one sample, 1 alone is one.
    assert effective_numbers(h, y, 3, "code", 2).tolist() == pytest.approx([2.0, 1.0, 0.0])


def test_in_two_dimensions_by_hand() -> None:
    # (2, 0), (0, 2), (-2, 1): mean (0, 1); directions (2, -1)/√5, (0, 1), (-1, 0). Their mean is
    # ((2/√5 - 1)/3, (1 - 1/√5)/3) = (-0.035191, 0.184262), squared and added 0.035191: ρ.
    h = torch.tensor([[2.0, 0.0], [0.0, 2.0], [-2.0, 1.0]])
    rho = (2 / 5**0.5 - 1) ** 2 / 9 + (1 - 1 / 5**0.5) ** 2 / 9
    y = torch.zeros(3, dtype=torch.int64)
    assert float(effective_numbers(h, y, 1, "unbiased", 32)) == pytest.approx(3 / (1 + 3 * rho))
    assert float(effective_numbers(h, y, 1, "code", 32)) == pytest.approx(1 / rho, rel=1e-4)


def test_two_samples_count_as_a_million_in_the_code() -> None:
    # Their directions are opposite, so the mean is 0, and 10⁻⁶ is the least product.
    h, y = torch.tensor([[0.0, 1.0], [2.0, 5.0]]), torch.zeros(2, dtype=torch.int64)
    assert float(effective_numbers(h, y, 1, "code", 32)) == pytest.approx(1e6)
    assert float(effective_numbers(h, y, 1, "unbiased", 32)) == pytest.approx(2.0)


@pytest.mark.parametrize("n", [2, 3, 16, 200])
def test_of_independent_samples_all_count(n: int) -> None:
    h, y = torch.randn(n, 64, generator=DRAW), torch.zeros(n, dtype=torch.int64)
    found = float(effective_numbers(h, y, 1, "unbiased", 32))
    assert 0.9 * n <= found <= n * (1 + 1e-6)
    # The code's estimate of few samples in one batch explodes: its own mean is taken off.
    if n <= 16:
        assert float(effective_numbers(h, y, 1, "code", 32)) > 10 * n


def test_what_is_larger_than_it_can_be_takes_the_mean_of_the_others() -> None:
    assert without_outliers(torch.tensor([2.0, 1e6, 4.0])).tolist() == [2.0, 3.0, 4.0]
    assert without_outliers(torch.tensor([1e6, 1e5])).tolist() == [1e4, 1e4]


def test_a_leap_is_not_believed() -> None:
    old = torch.tensor([1.0, 1.0, 1.0, 100.0])
    new = torch.tensor([50.0, 101.0, 0.5, 0.5])
    assert without_leaps(old, new).tolist() == [50.0, 1.0, 0.5, 100.0]
    # A factor of 100 itself is none.
    assert without_leaps(old[:1], torch.tensor([100.0])).tolist() == [100.0]
    assert without_leaps(old[3:], torch.tensor([1.5])).tolist() == [1.5]
