"""Counts of the long-tailed sets, as the papers print or imply them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedtail.data.longtail import Cut, Exponential, NoTail, Step, Tail
from fedtail.data.partitions import Labels
from fedtail.errors import FedtailError
from fedtail.rng import numpy_generator

CIFAR10 = np.full(10, 5000)
CIFAR100 = np.full(100, 500)
MNIST = np.array([5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])


@pytest.mark.parametrize(
    ("imbalance", "counts"),
    [
        (100, [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]),
        (50, [5000, 3237, 2096, 1357, 878, 568, 368, 238, 154, 100]),
        (10, [5000, 3871, 2997, 2320, 1796, 1391, 1077, 834, 645, 500]),
    ],
)
def test_cifar10_counts(imbalance: float, counts: list[int]) -> None:
    assert Exponential(imbalance=imbalance).counts(CIFAR10).tolist() == counts


@pytest.mark.parametrize(("imbalance", "total"), [(100, 10_847), (50, 12_608), (10, 19_573)])
def test_cifar100_totals(imbalance: float, total: int) -> None:
    assert Exponential(imbalance=imbalance).counts(CIFAR100).sum() == total


def test_cifar100_groups() -> None:
    counts = Exponential(imbalance=100).counts(CIFAR100)
    assert (counts[:35] > 100).all()
    assert counts[35] == 98
    assert counts[69] == 20
    assert (counts[70:] < 20).all()


def test_mnist_counts_from_each_class_own_size() -> None:
    counts = Exponential(imbalance=100, own_size=True).counts(MNIST)
    assert counts.tolist() == [5923, 4041, 2141, 1320, 754, 419, 274, 174, 97, 59]
    assert counts[0] / counts[-1] == pytest.approx(100.4, abs=0.05)


@pytest.mark.parametrize(("imbalance", "total"), [(100, 15_202), (50, 17_123), (10, 24_834)])
def test_mnist_totals(imbalance: float, total: int) -> None:
    assert Exponential(imbalance=imbalance, own_size=True).counts(MNIST).sum() == total


def test_uneven_classes_start_from_the_largest_and_keep_what_they_have() -> None:
    # The targets are 6742 * 100^(-c/9): 6742, 4041, ..., 67. Class 0 has only 5923.
    counts = Exponential(imbalance=100).counts(MNIST)
    assert counts[0] == 5923
    assert counts[1] == 4041
    assert counts[-1] == 67


def test_speech_commands_counts_by_rank() -> None:
    sizes = numpy_generator(0, "sizes").permutation(np.arange(3000, 3700, 20))
    counts = Exponential(imbalance=100, n_max=3000, sort_classes=True).counts(sizes)
    assert counts.sum() == 23_463
    assert counts.max() == 3000
    assert counts.min() == 30
    assert np.array_equal(np.argsort(-counts), np.argsort(-sizes))


@pytest.mark.parametrize(("sizes", "total"), [(CIFAR10, 35_150), (MNIST, 42_140)])
def test_binary_imbalance_of_redgrape(sizes: np.ndarray, total: int) -> None:
    assert Step(imbalance=100, classes=(0, 7, 8)).counts(sizes).sum() == total


def test_step_cuts_the_second_half() -> None:
    assert Step(imbalance=10).counts(np.full(5, 20)).tolist() == [20, 20, 2, 2, 2]


def test_step_names_a_class_that_does_not_exist() -> None:
    with pytest.raises(FedtailError, match=r"class 12 is not one of the 10 classes.*0 to 9"):
        Step(classes=(12,)).counts(CIFAR10)


def test_no_tail_keeps_everything() -> None:
    labels = Labels(np.array([2, 0, 2]), 3)
    assert NoTail().counts(labels.counts()).tolist() == [1, 0, 2]
    assert NoTail().keep(labels, numpy_generator(0, "tail")).tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", ["exponential", "step"])
def test_imbalance_below_one_is_refused(name: str) -> None:
    with pytest.raises(FedtailError, match="greater than or equal to 1"):
        Tail.model_validate({"name": name, "imbalance": 0.01})


def test_first_takes_file_order() -> None:
    labels = Labels(np.array([1, 0, 1, 0, 1, 0, 1, 0]), 2)
    kept = Exponential(imbalance=2, take="first").keep(labels, numpy_generator(0, "tail"))
    assert kept.tolist() == [0, 1, 2, 3, 5, 7]


def test_random_depends_on_the_generator_alone() -> None:
    labels = Labels(np.tile(np.arange(10), 50), 10)
    first, again, other = (
        Exponential(imbalance=10).keep(labels, numpy_generator(seed, "tail")) for seed in (0, 0, 1)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@settings(deadline=None)  # a busy machine may take any time
@given(
    y=arrays.arrays(np.int64, st.integers(1, 200), elements=st.integers(0, 6)),
    imbalance=st.floats(1, 1e6),
    name=st.sampled_from(["exponential", "step"]),
    sort_classes=st.booleans(),
)
def test_kept_samples_match_the_counts(
    y: np.ndarray, imbalance: float, name: str, sort_classes: bool
) -> None:
    fields = {"sort_classes": sort_classes} if name == "exponential" else {}
    tail = Tail.model_validate({"name": name, "imbalance": imbalance, **fields})
    assert isinstance(tail, Cut)
    labels = Labels(y, 8)
    kept = tail.keep(labels, numpy_generator(0, "tail"))
    counts = tail.counts(labels.counts())
    assert (np.diff(kept) > 0).all()
    assert np.array_equal(np.bincount(y[kept], minlength=8), counts)
    assert (counts <= labels.counts()).all()
    assert np.array_equal(counts > 0, labels.counts() > 0)


def test_abstract_tail_says_so() -> None:
    with pytest.raises(FedtailError, match="abstract"):
        Tail().counts(CIFAR10)
