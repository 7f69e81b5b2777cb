"""Where the lines between many, medium and few run."""

from __future__ import annotations

import pytest

from fedtail.config import Config
from fedtail.errors import FedtailError
from fedtail.metrics import IndexGroups, RankGroups, ShotGroups, ThresholdGroups


def sizes(groups: ShotGroups, counts: list[int]) -> tuple[int, int, int]:
    found = groups.assign(counts)
    return len(found["many"]), len(found["medium"]), len(found["few"])


@pytest.mark.parametrize(
    ("num_classes", "expected"),
    [
        (100, (35, 35, 30)),
        (10, (4, 3, 3)),
        (8, (3, 3, 2)),  # ceil(2.8), floor(2.4)
        (62, (22, 22, 18)),  # ceil(21.7), floor(18.6)
        (180, (63, 63, 54)),  # 0.35 * 180 in floats is a little less than 63
        (2, (1, 1, 0)),
    ],
)
def test_rank_shares(num_classes: int, expected: tuple[int, int, int]) -> None:
    assert sizes(RankGroups(), list(range(num_classes, 0, -1))) == expected


def test_rank_follows_frequency_not_index() -> None:
    # Frequency order: 3, 1, 0, 2, 4, ...; many = 4 of 10, few = the last 3.
    found = RankGroups().assign([30, 40, 20, 50, 10, 9, 8, 7, 6, 5])

    assert found == {"many": (0, 1, 2, 3), "medium": (4, 5, 6), "few": (7, 8, 9)}


def test_ties_and_untrained_classes_stand_in_index_order() -> None:
    found = RankGroups().assign([0, 5, 0, 5, 0, 5, 0, 5, 0, 5])

    assert found == {"many": (1, 3, 5, 7), "medium": (0, 2, 9), "few": (4, 6, 8)}


def test_thresholds_at_the_boundaries() -> None:
    found = ThresholdGroups().assign([101, 100, 20, 19, 0])

    assert found == {"many": (0,), "medium": (1, 2), "few": (3, 4)}


def test_threshold_groups_may_be_empty() -> None:
    assert sizes(ThresholdGroups(many=1500, few=200), [5000, 2000]) == (2, 0, 0)


def test_index_ranges_of_imagenet_lt() -> None:
    groups = IndexGroups(many_until=385, medium_until=864)

    assert sizes(groups, [1] * 1000) == (385, 479, 136)


def test_index_beyond_the_classes_is_refused() -> None:
    with pytest.raises(FedtailError, match=r"groups\.medium_until = 864 is beyond the 10 classes"):
        IndexGroups(many_until=385, medium_until=864).assign([1] * 10)


def test_crossed_lines_are_refused() -> None:
    with pytest.raises(FedtailError, match="few = 30 must not exceed many = 20"):
        ThresholdGroups(many=20, few=30)
    with pytest.raises(FedtailError, match="many_until = 7 must not exceed medium_until = 4"):
        IndexGroups(many_until=7, medium_until=4)


def test_groups_are_found_by_name() -> None:
    class Holder(Config):
        groups: ShotGroups = RankGroups()

    table = {"groups": {"name": "thresholds", "many": 1500, "few": 200}}
    holder = Holder.model_validate(table)

    assert holder.groups == ThresholdGroups(many=1500, few=200)
    assert holder.describe() == table
    assert Holder.model_validate({"groups": "rank"}).groups == RankGroups()


@pytest.mark.parametrize("counts", [[3], [5, 5, 5], [14, 10, 11, 12]])
def test_without_a_tail_there_are_no_groups(counts: list[int]) -> None:
    assert sizes(RankGroups(), counts) == (0, 0, 0)
    assert sizes(RankGroups(), [*counts, min(counts) // 2]) != (0, 0, 0)
