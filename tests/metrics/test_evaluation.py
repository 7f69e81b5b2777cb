"""Counts: against scikit-learn, by hand, and merged in any order."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix
from torch import Tensor

from fedtail.errors import FedtailError
from fedtail.metrics import Evaluation


def batch(samples: int, num_classes: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(samples, num_classes, generator=generator)
    return logits, torch.randint(num_classes, (samples,), generator=generator)


def same_bits(a: Evaluation, b: Evaluation) -> bool:
    return (
        a.loss_sum == b.loss_sum
        and torch.equal(a.right, b.right)
        and torch.equal(a.of_class, b.of_class)
        and torch.equal(a.confusion, b.confusion)
        and torch.equal(a.bin_count, b.bin_count)
        and torch.equal(a.bin_correct, b.bin_correct)
        and torch.equal(a.bin_confidence, b.bin_confidence)
    )


def test_confusion_has_the_truth_in_rows_as_scikit_learn() -> None:
    logits, y = batch(200, 5, seed=0)

    found = Evaluation.of(logits, y, 5)

    expected = confusion_matrix(y.numpy(), logits.argmax(1).numpy(), labels=range(5))
    assert found.confusion.dtype == torch.int64
    assert np.array_equal(found.confusion.numpy(), expected)
    assert np.array_equal(found.right.numpy(), expected.diagonal())
    assert np.array_equal(found.of_class.numpy(), expected.sum(axis=1))
    assert found.samples == 200


def test_many_classes_are_scored_without_a_table_of_confusions() -> None:
    # The cells of 50,000 classes would take 20 GB a batch.
    z = torch.zeros(3, 50_000)
    z[[0, 1, 2], [7, 49_999, 7]] = 1.0

    found = Evaluation.of(z, torch.tensor([7, 49_999, 8]), 50_000) + Evaluation.empty(50_000)

    assert found.confusion.shape == (0, 0)
    assert (found.samples, found.num_classes) == (3, 50_000)
    assert found.right.nonzero().flatten().tolist() == [7, 49_999]
    assert found.of_class.nonzero().flatten().tolist() == [7, 8, 49_999]


def test_loss_by_hand() -> None:
    # Softmax of (0, ln 3) is (1/4, 3/4): truth 1 costs ln 4/3, truth 0 costs ln 4.
    logits = torch.tensor([[0.0, math.log(3)], [0.0, math.log(3)]])

    found = Evaluation.of(logits, torch.tensor([1, 0]), 2)

    assert found.loss_sum == pytest.approx(math.log(4 / 3) + math.log(4), abs=1e-6)


def test_bins_by_hand() -> None:
    # Confidence 3/4 lies in (11/15, 12/15] = (0.733, 0.8], bin 11; 1/2 in (7/15, 8/15], bin 7;
    # certainty closes the last bin.
    logits = torch.tensor([[0.0, math.log(3)], [0.0, 0.0], [0.0, 1000.0], [0.0, math.log(3)]])

    found = Evaluation.of(logits, torch.tensor([1, 0, 1, 0]), 2)

    count, correct, confidence = [0] * 15, [0] * 15, [0.0] * 15
    count[11], count[7], count[14] = 2, 1, 1
    correct[11], correct[7], correct[14] = 1, 1, 1
    confidence[11], confidence[7], confidence[14] = 1.5, 0.5, 1.0
    assert found.bin_count.tolist() == count
    assert found.bin_correct.tolist() == correct
    assert found.bin_confidence.tolist() == pytest.approx(confidence, abs=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_merging_gives_the_same_bits_in_any_order(data: st.DataObject) -> None:
    logits, y = batch(60, 4, seed=data.draw(st.integers(0, 1000)))
    cuts = sorted(data.draw(st.lists(st.integers(0, 60), max_size=6)))
    parts = [Evaluation.of(logits[a:b], y[a:b], 4) for a, b in pairwise([0, *cuts, 60])]
    order = data.draw(st.permutations(range(len(parts))))

    merged = sum((parts[i] for i in order), start=Evaluation.empty(4))

    assert same_bits(merged, Evaluation.of(logits, y, 4))


def test_half_precision_logits_are_summed_in_double() -> None:
    found = Evaluation.of(torch.zeros(3, 2, dtype=torch.bfloat16), torch.zeros(3).long(), 2)

    assert found.bin_confidence.dtype == torch.float64
    assert found.loss_sum == pytest.approx(3 * math.log(2), abs=1e-6)


def test_one_class_and_no_sample() -> None:
    one = Evaluation.of(torch.tensor([[2.0], [-1.0]]), torch.tensor([0, 0]), 1)
    none = Evaluation.of(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), 3)

    assert one.confusion.tolist() == [[2]]
    assert one.loss_sum == 0.0
    assert same_bits(none, Evaluation.empty(3))


def test_a_diverged_model_is_counted_and_its_loss_is_not_finite() -> None:
    found = Evaluation.of(torch.full((2, 3), torch.nan), torch.tensor([0, 2]), 3)

    assert found.samples == 2
    assert math.isnan(found.loss_sum)


@pytest.mark.parametrize(
    ("logits", "y", "message"),
    [
        (torch.zeros(2, 4), torch.tensor([0, 1]), "logits of shape"),
        (torch.zeros(3, 3), torch.tensor([0, 1]), "do not fit 2 labels"),
        (torch.zeros(2, 3), torch.tensor([0, 3]), "labels 0 to 3 are not all in 0 to 2"),
        (torch.zeros(1, 3), torch.tensor([-1]), "labels -1 to -1"),
    ],
)
def test_what_does_not_fit_is_refused(logits: Tensor, y: Tensor, message: str) -> None:
    with pytest.raises(FedtailError, match=message):
        Evaluation.of(logits, y, 3)


def test_evaluations_of_different_classes_do_not_add() -> None:
    with pytest.raises(FedtailError, match="2 and 3 classes"):
        Evaluation.empty(2) + Evaluation.empty(3)
