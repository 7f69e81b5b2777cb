"""What every scheme promises, on data made to be awkward."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedtail.data.partitions import Labels, Natural, Partition, Pathological
from fedtail.errors import FedtailError
from fedtail.rng import numpy_generator

CLASSES = 7
SCHEMES: list[dict[str, Any]] = [
    {"name": "dirichlet", "alpha": 0.5},
    {"name": "dirichlet", "alpha": 1e-3},
    {"name": "dirichlet", "alpha": 1e-300},
    {"name": "dirichlet", "alpha": 1e6},
    {"name": "dirichlet-balanced", "alpha": 0.5},
    {"name": "dirichlet-balanced", "alpha": 1e-3},
    {"name": "creff", "alpha": 0.5},
    {"name": "creff", "alpha": 1e-3},
    {"name": "redgrape", "alpha": 1.0},
    {"name": "redgrape", "alpha": 1e-3},
    {"name": "tau", "tau": 1.0},
    {"name": "tau", "tau": 0.01},
    {"name": "tau", "tau": 1000.0},
    {"name": "shards", "per_client": 2},
    {"name": "shards", "per_client": 1000},
    {"name": "pathological", "classes_per_client": CLASSES},
    {"name": "iid"},
    {"name": "natural"},
]


def check_partition(fields: dict[str, Any], labels: Labels, clients: int) -> Sequence[np.ndarray]:
    parts = Partition.model_validate(fields).split(labels, clients, numpy_generator(0, "partition"))
    assert len(parts) == clients
    assert all(len(part) for part in parts)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels.y)))
    assert all((np.diff(part) > 0).all() for part in parts)
    return parts


@pytest.mark.parametrize("fields", SCHEMES, ids=str)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_sample_goes_to_one_client(fields: dict[str, Any], data: st.DataObject) -> None:
    # Six of seven classes at most: one is always absent, and often only one is there.
    y = data.draw(arrays.arrays(np.int64, st.integers(1, 120), elements=st.integers(0, 5)))
    clients = data.draw(st.integers(1, len(y)))
    labels = Labels(y, CLASSES, np.arange(len(y)) % clients)
    check_partition(fields, labels, clients)


@pytest.mark.parametrize("fields", SCHEMES, ids=str)
@pytest.mark.parametrize("y", [np.full(40, 3), np.repeat(np.arange(4), 10)], ids=["one", "four"])
@pytest.mark.parametrize("clients", [1, 40])
def test_one_client_and_one_sample_each(
    fields: dict[str, Any], y: np.ndarray, clients: int
) -> None:
    check_partition(fields, Labels(y, CLASSES, np.arange(40) % clients), clients)


@pytest.mark.parametrize("fields", SCHEMES, ids=str)
def test_same_generator_same_split(fields: dict[str, Any]) -> None:
    labels = Labels(np.tile(np.arange(CLASSES), 40), CLASSES, np.arange(280) % 12)
    first, again = (check_partition(fields, labels, 12) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("fields", SCHEMES, ids=str)
@pytest.mark.parametrize(
    ("clients", "words"), [(11, "11 clients but only 10 samples"), (0, "is 0")]
)
def test_impossible_numbers_of_clients_are_refused(
    fields: dict[str, Any], clients: int, words: str
) -> None:
    labels = Labels(np.arange(10) % CLASSES, CLASSES, np.arange(10))
    with pytest.raises(FedtailError, match=words):
        Partition.model_validate(fields).split(labels, clients, numpy_generator(0, "partition"))


@pytest.mark.parametrize("fields", SCHEMES, ids=str)
def test_many_clients_end_in_time(fields: dict[str, Any]) -> None:
    labels = Labels(np.repeat(np.arange(10), 2000), 10, np.arange(20_000) % 1000)
    begin = time.process_time()
    check_partition(fields, labels, 1000)
    # Seconds of this process, whatever else the machine does. About one for the worst.
    assert time.process_time() - begin < 15


def test_natural_scales_to_a_hundred_thousand_clients() -> None:
    owner = numpy_generator(0, "owners").permutation(np.repeat(np.arange(100_000), 20))
    labels = Labels(owner % 62, 62, owner)
    begin = time.process_time()
    parts = Natural().split(labels, 100_000, numpy_generator(0, "partition"))
    assert time.process_time() - begin < 10
    assert {len(part) for part in parts} == {20}
    assert (owner[parts[99_999]] == 99_999).all()


@pytest.mark.parametrize("name", ["dirichlet", "dirichlet-balanced"])
@pytest.mark.parametrize(("minimum", "smallest"), [(10, 10), (20, 20), (1000, 20)])
def test_minimum_size_is_repaired_or_lowered(name: str, minimum: int, smallest: int) -> None:
    # 2000 samples for 100 clients: an equal share is 20, so 1000 is lowered to 20.
    labels = Labels(np.tile(np.arange(CLASSES), 300)[:2000], CLASSES)
    fields = {"name": name, "alpha": 1e-3, "min_size": minimum}
    parts = check_partition(fields, labels, 100)
    assert min(len(part) for part in parts) == smallest


def test_pathological_refuses_what_cannot_hold_all_classes() -> None:
    labels = Labels(np.arange(20) % 10, 10)
    with pytest.raises(FedtailError, match="4 clients with 2 classes each cannot hold all 10"):
        Pathological().split(labels, 4, numpy_generator(0, "partition"))


@pytest.mark.parametrize("name", ["dirichlet", "dirichlet-balanced", "creff", "redgrape"])
def test_a_concentration_whose_sum_is_infinite_is_refused(name: str) -> None:
    with pytest.raises(FedtailError, match="'alpha' = 1e\\+308 is refused"):
        Partition.model_validate({"name": name, "alpha": 1e308})
    check_partition({"name": name, "alpha": 1e100}, Labels(np.arange(40) % 4, CLASSES), 5)
