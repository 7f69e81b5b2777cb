"""Weighted means over clients."""

from __future__ import annotations

from itertools import permutations

import torch

from fedtail.training import weighted_mean


def test_by_hand() -> None:
    # (1 · 2 + 3 · 6) / 4 = 5, (1 · 0 + 3 · 4) / 4 = 3
    mean = weighted_mean([{"w": torch.tensor([2.0, 0.0])}, {"w": torch.tensor([6.0, 4.0])}], [1, 3])
    assert mean["w"].tolist() == [5.0, 3.0]
    assert mean["w"].dtype == torch.float32


def test_sums_are_in_float64() -> None:
    # (2^24 + 1 + 1) / 3 = 5592406. In float32, 2^24 + 1 is 2^24 again, and the mean 5592405.5.
    items = [{"w": torch.tensor(value)} for value in (2.0**24, 1.0, 1.0)]
    assert float(weighted_mean(items, [1, 1, 1])["w"]) == 5592406.0


def test_whole_numbers_have_no_mean() -> None:
    items = [{"n": torch.tensor(3)}, {"n": torch.tensor(9)}, {"n": torch.tensor(5)}]
    mean = weighted_mean(items, [5, 1, 1])["n"]
    assert int(mean) == 9
    assert mean.dtype == torch.int64


def test_half_precision_stays_half_precision() -> None:
    items = [{"w": torch.tensor([1.0], dtype=torch.float16)}] * 2
    assert weighted_mean(items, [1, 1])["w"].dtype == torch.float16


def test_a_weight_of_zero_counts_nothing() -> None:
    items = [{"w": torch.tensor([1.0])}, {"w": torch.tensor([100.0])}]
    assert weighted_mean(items, [2, 0])["w"].tolist() == [1.0]


def test_equal_tensors_stay_as_they_are() -> None:
    value = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    mean = weighted_mean([{"w": value}] * 3, [7, 11, 13])["w"]
    assert torch.equal(mean, value)


def test_the_order_of_clients_matters_less_than_float32_shows() -> None:
    # Float64 sums differ in their last bit with the order. The engine's is always that of client
    # ids (see `test_sift.py`), so that this bit never shows.
    generator = torch.Generator().manual_seed(0)
    items = [{"w": torch.randn(200, generator=generator)} for _ in range(4)]
    weights = [3.0, 1.0, 12.0, 7.0]
    means = [
        weighted_mean([items[i] for i in order], [weights[i] for i in order])["w"]
        for order in permutations(range(4))
    ]
    assert all(torch.allclose(mean, means[0], rtol=1e-6, atol=1e-12) for mean in means)


def test_the_items_are_not_changed() -> None:
    item = {"w": torch.tensor([1.0]), "n": torch.tensor(1)}
    weighted_mean([item, {"w": torch.tensor([3.0]), "n": torch.tensor(2)}], [1, 1])
    assert item["w"].tolist() == [1.0]
    assert int(item["n"]) == 1


def test_the_mean_of_one_is_itself() -> None:
    item = {"w": torch.tensor([1.0]), "n": torch.tensor(3)}
    found = weighted_mean([item], [5])
    assert found["w"].tolist() == [1.0]
    assert int(found["n"]) == 3
