from __future__ import annotations

import pytest
import torch

from fedtail.privacy.attacks import (
    auc,
    class_shares,
    guess_labels,
    likeness,
    presence,
)


def test_shares_are_the_positive_row_sums() -> None:
    # Rows sum to 3, 1 and −2: the last class is taken to be absent.
    change = torch.tensor([[1.0, 2.0], [0.5, 0.5], [-1.0, -1.0]])
    assert class_shares(change).tolist() == [0.75, 0.25, 0.0]
    assert class_shares(-torch.ones(4, 2)).tolist() == [0.25] * 4


def test_label_guesses_are_held_against_knowing_only_the_total() -> None:
    counts = {0: torch.tensor([4, 0]), 1: torch.tensor([1, 3])}
    seen = {0: torch.tensor([1.0, 0.0]).double(), 1: torch.tensor([0.75, 0.25]).double()}
    found = guess_labels(seen, counts)
    assert found.largest == 0.5  # client 1 has most of class 1
    assert found.distance == pytest.approx((0 + 0.5) / 2)
    # All together have 5 and 3 of 8: distances |5/8 − 1| and |5/8 − 1/4|.
    assert found.blind == pytest.approx((3 / 8 + 3 / 8) / 2)


def test_auc() -> None:
    assert auc(torch.tensor([2.0, 3.0]), torch.tensor([0.0, 1.0])) == 1.0
    assert auc(torch.tensor([1.0]), torch.tensor([1.0])) == 0.5
    assert auc(torch.tensor([]), torch.tensor([1.0])) is None
    scores = {0: torch.tensor([5.0, 0.0]), 1: torch.tensor([0.0, 2.0])}
    assert presence(scores, {0: torch.tensor([3, 0]), 1: torch.tensor([0, 1])}) == 1.0


def test_likeness_of_copies_and_of_noise() -> None:
    draw = torch.Generator().manual_seed(1)
    train = torch.randn(20, 64, generator=draw)
    y = torch.arange(2).repeat(10)
    copies = torch.stack([train[y == c][:5] for c in (0, 1)])
    found = likeness(copies, train, y, torch.randn(20, 64, generator=draw), y)
    assert found is not None
    assert found.made == pytest.approx(1.0)
    assert found.unseen < 0.6 and found.noise < 0.6
