"""What tells one scheme from another, on data small enough to count."""

import tracemalloc

import numpy as np
import pytest

from fedtail.data.partitions import (
    IID,
    CReFFSplit,
    Dirichlet,
    Labels,
    Natural,
    Partition,
    Pathological,
    RedGrapeSplit,
    Shards,
    TauSampling,
)
from fedtail.data.partitions.common import apportion, dirichlet, repaired
from fedtail.data.statistics import class_table
from fedtail.errors import FedtailError
from fedtail.rng import numpy_generator


def rng() -> np.random.Generator:
    return numpy_generator(0, "partition")


def test_cut_truncates_the_cumulative_shares() -> None:
    # Cumulative 0.25, 0.6, 1.0 of 10: borders 2, 6, 10.
    assert apportion(np.array([0.25, 0.35, 0.4]), 10).tolist() == [2, 4, 4]
    assert apportion(np.array([[0.5, 0.5], [1.0, 0.0]]), np.array([3, 5])).tolist() == [
        [1, 2],
        [5, 0],
    ]


def test_dirichlet_draws_are_always_shares() -> None:
    for alpha in (1e-320, 1e-300, 1e-3, 1.0, 1e8):
        draws = dirichlet(rng(), np.full(50, alpha), rows=200)
        assert draws.sum(axis=1) == pytest.approx(1.0)


def test_repair_takes_from_the_largest_and_keeps_their_mix() -> None:
    # Sizes 12, 8, 1, 0 and a minimum of 3: the small ones miss 2 and 3. Level 8 frees 4 samples,
    # level 7 frees 5 + 1 = 6, one too many, which goes back to the first donor: 4 and 1 are given.
    client = np.repeat([0, 1, 2], [12, 8, 1])
    y = np.array([0] * 6 + [1] * 6 + [0] * 8 + [0])
    after = repaired(client, Labels(y, 2), 4, 3)
    assert np.bincount(after).tolist() == [8, 7, 3, 3]
    assert np.bincount(y[after == 0]).tolist() == [4, 4]


def test_creff_sizes_differ_by_one() -> None:
    labels = Labels(np.arange(1003) % 10, 10)
    for clients in (4, 10, 20, 25):
        sizes = {len(part) for part in CReFFSplit().split(labels, clients, rng())}
        assert sizes <= {1003 // clients, 1003 // clients + 1}


def test_redgrape_last_client_takes_the_rest() -> None:
    labels = Labels(np.arange(1003) % 10, 10)
    sizes = [len(part) for part in RedGrapeSplit().split(labels, 10, rng())]
    assert sizes == [100] * 9 + [103]


def test_tau_one_puts_the_rarest_class_on_one_client() -> None:
    y = np.repeat(np.arange(3), [50, 20, 5])
    parts = TauSampling(tau=1).split(Labels(y, 3), 5, rng())
    table = class_table(y, parts, 3)
    # The first lot of 5 is class 2; lots 2 to 5 are class 1, one for each other client.
    assert table[:, 2].tolist() == [5, 0, 0, 0, 0]
    assert table[:, 1].tolist() == [0, 5, 5, 5, 5]
    assert table.sum(axis=1).tolist() == [15] * 5


def test_shards_hold_at_most_as_many_classes() -> None:
    # 10 classes of 20 in 20 shards of 10: no shard straddles two classes.
    y = np.repeat(np.arange(10), 20)
    table = class_table(y, Shards(per_client=2).split(Labels(y, 10), 10, rng()), 10)
    assert (table.sum(axis=1) == 20).all()
    assert ((table > 0).sum(axis=1) <= 2).all()


def test_shards_that_do_not_divide_lose_nothing() -> None:
    y = np.repeat(np.arange(10), 50)
    sizes = [len(part) for part in Shards(per_client=6).split(Labels(y, 10), 20, rng())]
    # 500 samples in 120 shards: 20 of 5 and 100 of 4.
    assert sum(sizes) == 500
    assert min(sizes) >= 24
    assert max(sizes) <= 30


@pytest.mark.parametrize("clients", [5, 20])
def test_pathological_gives_exactly_k_classes(clients: int) -> None:
    # With 5 clients of 2 classes every class has one holder: only the swaps can achieve that.
    y = np.repeat(np.arange(10), 100)
    parts = Pathological(classes_per_client=2).split(Labels(y, 10), clients, rng())
    table = class_table(y, parts, 10)
    assert ((table > 0).sum(axis=1) == 2).all()
    for column in table.T:
        held = column[column > 0]
        assert held.max() - held.min() <= 1


def test_iid_sizes_and_mix() -> None:
    y = np.arange(1001) % 2
    table = class_table(y, IID().split(Labels(y, 2), 4, rng()), 2)
    assert table.sum(axis=1).tolist() == [251, 250, 250, 250]
    # Hypergeometric: 250 draws have a standard deviation of 6.8 around 125; five of them.
    assert (np.abs(table - 125) < 34).all()


def test_natural_clients_in_order_and_a_seeded_subset() -> None:
    owner = np.array([9, 4, 9, 7, 4, 4])
    labels = Labels(np.zeros(6, dtype=np.int64), 1, owner)
    assert Natural().all_clients(labels) == 3
    parts = Natural().split(labels, 3, rng())
    assert [part.tolist() for part in parts] == [[1, 4, 5], [3], [0, 2]]
    some = Natural().split(labels, 2, rng())
    assert len(some) == 2
    assert all(len(set(owner[part])) == 1 for part in some)


def test_natural_says_what_is_missing() -> None:
    labels = Labels(np.zeros(6, dtype=np.int64), 1)
    with pytest.raises(FedtailError, match="this data names none"):
        Natural().split(labels, 2, rng())
    with pytest.raises(FedtailError, match="only 3 natural clients"):
        Natural().split(Labels(labels.y, 1, np.arange(6) // 2), 4, rng())


@pytest.mark.parametrize(
    ("partition", "clients", "classes", "megabytes"),
    [
        # A million cells, each at least a number that was drawn: 8 bytes.
        (RedGrapeSplit(), 1000, 1000, 16),
        (Dirichlet(min_size=1), 1000, 1000, 30),
        (Pathological(classes_per_client=2), 4000, 250, 10),  # a thousand clients are drawn at once
    ],
    ids=str,
)
def test_many_clients_times_many_classes_cost_little_more_than_the_draws(
    partition: Partition, clients: int, classes: int, megabytes: int
) -> None:
    labels = Labels(np.arange(2 * clients) % classes, classes)
    tracemalloc.start()
    try:
        parts = partition.split(labels, clients, rng())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(len(part) for part in parts) == 2 * clients
    assert peak < megabytes * 2**20


def test_a_group_of_creff_passes_over_classes_that_it_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cut: list[int] = []

    def counted(shares: np.ndarray, total: int) -> np.ndarray:
        cut.append(int(total))
        return apportion(shares, total)

    monkeypatch.setattr("fedtail.data.partitions.dirichlet.apportion", counted)
    # 10 clients with 30 samples of 30 classes out of 900.
    CReFFSplit().split(Labels(30 * np.arange(30), 900), 10, rng())
    assert cut
    assert all(cut)
