"""Figures measured with the authors' functions, or by hand from their description.

An oracle is one draw of one seed, with another random generator than ours. The figure is computed
here for 20 seeds, which gives its mean m and the standard deviation s of a single draw; the oracle
must lie within 3.5 s of m (0.05 % of normal draws do not), or within what its printed digits leave
open where our draws hardly vary.
"""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from fedtail.data.longtail import Exponential
from fedtail.data.partitions import (
    BalancedDirichlet,
    CReFFSplit,
    Dirichlet,
    Labels,
    Partition,
    RedGrapeSplit,
    TauSampling,
)
from fedtail.data.statistics import Statistics, statistics
from fedtail.rng import numpy_generator

SEEDS = 20
CIFAR10, CIFAR100, SPEECH = "cifar10", "cifar100", "speech"
AVAILABLE = {CIFAR10: (10, 5000), CIFAR100: (100, 500), SPEECH: (35, 3000)}


@cache
def measured(data: str, partition: Partition, clients: int) -> list[Statistics]:
    classes, size = AVAILABLE[data]
    y = np.repeat(np.arange(classes), Exponential(imbalance=100).counts(np.full(classes, size)))
    labels = Labels(y, classes)
    draws = (
        partition.split(labels, clients, numpy_generator(seed, "partition"))
        for seed in range(SEEDS)
    )
    return [statistics(y, parts, classes) for parts in draws]


def agrees(figures: list[Statistics], of: Callable[[Statistics], float], oracle: float) -> bool:
    values = np.array([of(one) for one in figures])
    digits = 0.05 if oracle > 1 else 0.0005
    return bool(abs(values.mean() - oracle) <= 3.5 * values.std(ddof=1) + digits)


@pytest.mark.parametrize(
    ("data", "partition", "clients", "classes", "variation"),
    [
        (CIFAR10, RedGrapeSplit(alpha=1), 10, 6.2, 0.408),
        (CIFAR10, RedGrapeSplit(alpha=1), 50, 4.4, 0.501),
        (CIFAR100, RedGrapeSplit(alpha=1), 10, 71.2, 0.471),
        (CIFAR10, CReFFSplit(alpha=0.5), 20, 5.3, 0.452),
        (CIFAR100, CReFFSplit(alpha=0.5), 20, 48.5, 0.500),
        (CIFAR10, BalancedDirichlet(alpha=0.5), 100, 5.5, 0.489),
        (CIFAR100, BalancedDirichlet(alpha=0.1), 100, 15.2, 0.798),
        (CIFAR10, TauSampling(tau=1), 10, 7.0, 0.069),
        (CIFAR10, TauSampling(tau=2), 10, 5.7, 0.168),
        (CIFAR10, TauSampling(tau=4), 10, 4.5, 0.265),
        (SPEECH, TauSampling(tau=2), 10, 20.7, 0.149),
    ],
    ids=str,
)
def test_classes_per_client_and_variation(
    data: str, partition: Partition, clients: int, classes: float, variation: float
) -> None:
    figures = measured(data, partition, clients)
    assert agrees(figures, lambda one: one.classes.mean(), classes)
    assert agrees(figures, lambda one: one.total_variation.mean(), variation)


@pytest.mark.parametrize(
    ("data", "partition", "clients", "low", "high"),
    [
        (CIFAR10, RedGrapeSplit(alpha=1), 10, 1240, 1246),
        (CIFAR10, RedGrapeSplit(alpha=1), 50, 248, 254),
        (CIFAR100, RedGrapeSplit(alpha=1), 10, 1084, 1091),
        (CIFAR10, CReFFSplit(alpha=0.5), 20, 620, 621),
        (CIFAR100, CReFFSplit(alpha=0.5), 20, 542, 543),
        (CIFAR10, TauSampling(tau=1), 10, 1240, 1241),
        (SPEECH, TauSampling(tau=2), 10, 2346, 2347),
    ],
    ids=str,
)
def test_sizes_that_do_not_depend_on_the_seed(
    data: str, partition: Partition, clients: int, low: int, high: int
) -> None:
    for one in measured(data, partition, clients):
        assert (one.sizes.min(), one.sizes.max()) == (low, high)


@pytest.mark.parametrize(
    ("data", "alpha", "low", "median", "high"),
    [(CIFAR10, 0.5, 29, 125, 481), (CIFAR100, 0.1, 44, 111, 191)],
)
def test_sizes_of_the_balanced_dirichlet(
    data: str, alpha: float, low: int, median: int, high: int
) -> None:
    figures = measured(data, BalancedDirichlet(alpha=alpha), 100)
    assert agrees(figures, lambda one: one.sizes.min(), low)
    assert agrees(figures, lambda one: np.median(one.sizes), median)
    assert agrees(figures, lambda one: one.sizes.max(), high)


@pytest.mark.parametrize(
    ("data", "oracles"), [(CIFAR10, (0.578, 0.408, 0.307)), (CIFAR100, (0.243, 0.471, 0.511))]
)
def test_alpha_of_redgrape(data: str, oracles: tuple[float, float, float]) -> None:
    for alpha, oracle in zip((0.1, 1, 10), oracles, strict=True):
        figures = measured(data, RedGrapeSplit(alpha=alpha), 10)
        assert agrees(figures, lambda one: one.total_variation.mean(), oracle)


def test_alpha_of_redgrape_is_reversed_on_cifar100() -> None:
    means = {
        data: [
            np.mean(
                [one.total_variation.mean() for one in measured(data, RedGrapeSplit(alpha=a), 10)]
            )
            for a in (0.1, 1, 10)
        ]
        for data in (CIFAR10, CIFAR100)
    }
    assert means[CIFAR10] == sorted(means[CIFAR10], reverse=True)
    assert means[CIFAR100] == sorted(means[CIFAR100])


def test_plain_dirichlet_is_less_even_than_the_balanced_one() -> None:
    plain = measured(CIFAR10, Dirichlet(alpha=0.5), 100)
    even = measured(CIFAR10, BalancedDirichlet(alpha=0.5), 100)
    assert np.mean([one.sizes.std() for one in plain]) > np.mean([one.sizes.std() for one in even])
