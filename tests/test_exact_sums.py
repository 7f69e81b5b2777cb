"""Exact sums: whole numbers, whatever the order and however they are shared out."""

from __future__ import annotations

import json
import math
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor

from fedtail.forms import LARGEST, First, Form, Like, Mean, Number, Total
from fedtail.protocol import Payload, Update
from fedtail.sums import PIECE, Frame, Frames, add, narrow, opened, wide, zeros
from fedtail.totals import StackedUpdates, Sums


def summed(numbers: list[Tensor], weights: list[float], frame: Frame) -> Tensor:
    total = zeros(numbers[0].shape, frame)
    for x, weight in zip(numbers, weights, strict=True):
        add(total, x, weight, frame)
    return opened(total, frame)


def test_a_sum_by_hand() -> None:
    # In multiples of 2^-2: 3 · 1.3 = 3.9 is 16 quarters (15.6), 2 · 0.2 = 0.4 is 2 (1.6): 18 / 4.
    frame = Frame((2,), 100.0)
    found = summed([torch.tensor([1.3]), torch.tensor([0.2])], [3.0, 2.0], frame)
    assert found.tolist() == [4.5]
    # With a second integer of 2^-4 for what is left: 3.9 - 4 = -0.1 is -2 sixteenths (-1.6), 0.4 -
    # 0.5 = -0.1 likewise: 18 / 4 - 4 / 16.
    finer = Frame((2, 4), 100.0)
    found = summed([torch.tensor([1.3]), torch.tensor([0.2])], [3.0, 2.0], finer)
    assert found.tolist() == [4.25]


@pytest.mark.parametrize(
    "frame", [wide(4, 1000.0), narrow(torch.randn(9), 4, 1000.0)], ids=["wide", "narrow"]
)
def test_no_order_and_no_part_changes_a_bit(frame: Frame) -> None:
    generator = torch.Generator().manual_seed(0)
    numbers = [torch.randn(50, generator=generator) for _ in range(4)]
    weights = [7.0, 1.0, 1000.0, 31.0]
    expected = summed(numbers, weights, frame)
    for order in permutations(range(4)):
        assert torch.equal(
            summed([numbers[i] for i in order], [weights[i] for i in order], frame), expected
        )
    # Two workers with two clients each: their integers are added.
    one, two = zeros((50,), frame), zeros((50,), frame)
    for i, total in ((2, one), (0, one), (3, two), (1, two)):
        add(total, numbers[i], weights[i], frame)
    assert torch.equal(opened([a + b for a, b in zip(one, two, strict=True)], frame), expected)


def test_a_wide_sum_is_that_of_infinite_precision() -> None:
    # Magnitudes from 1e-9 to 1e5 side by side, as gradients have them; fsum rounds once.
    generator = torch.Generator().manual_seed(0)
    exponents = torch.randint(-9, 6, (200,), generator=generator)
    numbers = [torch.randn(200, generator=generator) * 10.0**exponents for _ in range(20)]
    weights = [float(k + 1) for k in range(20)]
    found = summed(numbers, weights, wide(20, 20.0))
    exact = [
        math.fsum(float(x[i]) * w for x, w in zip(numbers, weights, strict=True))
        for i in range(200)
    ]
    # Three integers hold all bits of a float32 in this range; opening them rounds twice.
    torch.testing.assert_close(found, torch.tensor(exact, dtype=torch.float64), rtol=1e-15, atol=0)


@pytest.mark.parametrize("largest", [0.0, 0.3, 900.0])
def test_a_narrow_sum_has_room_for_all_that_is_allowed(largest: float) -> None:
    # As many addends as there can be, each with the largest weight and the largest number.
    frame = narrow(torch.tensor([largest]), 1000, 12345.0)
    assert frame.bound >= 2.0**16 * max(1.0, largest)
    total = zeros((1,), frame)
    add(total, torch.tensor([frame.bound], dtype=torch.float64), 12345.0, frame)
    assert int(total[0]) > 0
    assert int(total[0]) * 1000 < 2**63


@pytest.mark.parametrize(("addends", "weight"), [(1, 1.0), (1 << 20, 2.0**21), (7, 2.0**31)])
def test_a_wide_sum_has_room_for_all_that_is_allowed(addends: int, weight: float) -> None:
    frame = wide(addends, weight)
    total = zeros((1,), frame)
    add(total, torch.tensor([LARGEST], dtype=torch.float64), weight, frame)
    assert int(total[0]) > 0
    assert int(total[0]) * addends < 2**63
    # What is left goes into the second integer, and is at most half a step of the first.
    assert 2.0 ** (frame.shifts[1] - frame.shifts[0] - 1) * addends < 2**63


def test_frames_come_back_from_plain_data() -> None:
    frames = Frames({"model/w": narrow(torch.ones(3), 4, 5.0)}, wide(4, 5.0), 5.0)
    assert Frames.read(json.loads(json.dumps(frames.plain()))) == frames


def test_large_tensors_are_added_piece_by_piece() -> None:
    size = 2 * PIECE + 3
    x = torch.arange(size, dtype=torch.float32).reshape(1, size)
    frame = narrow(x, 2, 2.0)
    assert torch.equal(summed([x, x], [1.0, 2.0], frame), 3 * x.double())


@pytest.mark.parametrize("how", [Mean(), Mean(by=""), Mean(within="part"), Total(), First()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_a_stack_of_updates_adds_up_to_the_same_bits(how: Any, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    stack = (100 * torch.randn(5, 3, 2, generator=generator)).to(dtype)
    form = Form().group("model", {"w": Like((3, 2), dtype)}, how)
    form = form.group("more", {"v": Like((2,))}).numbers(samples=Number(), part=Number())
    extras = [
        Payload({"more/v": torch.full((2,), 0.1 * k)}, {"samples": k + 1, "part": k % 2})
        for k in range(5)
    ]
    clients = [4, 2, 7, 0, 1]
    one_by_one, at_once = Sums(form), Sums(form)
    for k, client in enumerate(clients):
        whole = Payload({"model/w": stack[k], **extras[k].tensors}, extras[k].scalars)
        one_by_one.add(Update(client, whole))
    at_once.add_stack(StackedUpdates(clients, {"model/w": stack}, extras))
    assert at_once.piles.keys() == one_by_one.piles.keys()
    assert at_once.scalars == one_by_one.scalars
    for key, pile in one_by_one.piles.items():
        other = at_once.piles[key]
        assert (other.weight, other.count) == (pile.weight, pile.count)
        assert all(torch.equal(a, b) for a, b in zip(other.whole, pile.whole, strict=True))
