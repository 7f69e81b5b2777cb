"""Samplers: permutations, and class shares by chi-square."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedtail.training import BatchSampler, ClassBalanced, Shuffled

# 90 samples of class 0, none of class 1, 10 of class 2.
LABELS = torch.tensor([0] * 90 + [2] * 10)


def drawn(sampler: BatchSampler, epochs: int = 100) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.cat([sampler.order(LABELS, generator) for _ in range(epochs)])


def chi_square(observed: Tensor, expected: Tensor) -> float:
    return float(((observed - expected).square() / expected).sum())


def test_shuffled_takes_each_sample_once() -> None:
    order = drawn(Shuffled(), epochs=1)
    assert sorted(order.tolist()) == list(range(100))
    assert order.tolist() != list(range(100))


@pytest.mark.parametrize(
    ("gamma", "share"),
    [
        (0.0, 1 / 2),  # two classes that are there, equally likely
        (0.5, 1 / 4),  # sqrt(10) / (sqrt(10) + sqrt(90)) = 1 / (1 + 3)
        (1.0, 1 / 10),  # as often as it is there
    ],
)
def test_class_shares(gamma: float, share: float) -> None:
    labels = LABELS[drawn(ClassBalanced(gamma=gamma))]
    observed = torch.bincount(labels, minlength=3)
    assert observed[1] == 0
    # One degree of freedom: above 10.83 in one of a thousand draws.
    expected = 10_000 * torch.tensor([1 - share, share])
    assert chi_square(observed[[0, 2]], expected) < 10.83


def test_the_share_is_not_another_one() -> None:
    # The same statistic refuses the neighbour: gamma = 0 is not gamma = 0.5.
    observed = torch.bincount(LABELS[drawn(ClassBalanced(gamma=0.5))], minlength=3)
    assert chi_square(observed[[0, 2]], torch.tensor([5000.0, 5000.0])) > 100


def test_samples_of_a_class_are_equally_likely() -> None:
    observed = torch.bincount(drawn(ClassBalanced()), minlength=100)[90:]
    # About 500 each; nine degrees of freedom: above 27.88 in one of a thousand.
    assert chi_square(observed, torch.full((10,), float(observed.sum()) / 10)) < 27.88


@pytest.mark.parametrize("name", list(BatchSampler.registry))
@pytest.mark.parametrize("labels", [[0, 0, 1, 2, 2], [3, 3, 3], [1]])
def test_an_epoch_is_as_long_as_the_data(name: str, labels: list[int]) -> None:
    sampler = BatchSampler.model_validate(name)
    order = sampler.order(torch.tensor(labels), torch.Generator().manual_seed(0))
    assert len(order) == len(labels)
    assert order.dtype == torch.int64
    assert 0 <= int(order.min()) <= int(order.max()) < len(labels)


@pytest.mark.parametrize("name", list(BatchSampler.registry))
def test_the_same_generator_gives_the_same_order(name: str) -> None:
    sampler = BatchSampler.model_validate(name)
    orders = [sampler.order(LABELS, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert torch.equal(orders[0], orders[1])
    assert not torch.equal(orders[0], orders[2])
