from __future__ import annotations

import json
from typing import Any

import pytest

from fedtail import FedtailError
from fedtail.diagnosis.parts import UNIT
from fedtail.diagnosis.rules import READINGS, Reading, judged
from fedtail.diagnosis.signals import Estimate, Readings, share_between

TOLD = {
    "right": [0, 0],
    "samples": [2, 2],
    "body": 0.0,
    "body2": 0.0,
    "loss": 3.0,
    "seen": 4.0,
    "forgotten": 0.0,
    "lacking": 0.0,
}


def group(counts: list[int], clients: list[list[int]], change: float = 1.0) -> dict[str, Any]:
    """Return what two clients with these counts and changes of length √change add up to."""
    sizes = [sum(row) / UNIT for row in clients]
    return {
        **TOLD,
        "counts": counts,
        "held": [sum(row[c] > 0 for row in clients) for c in range(len(counts))],
        "clients": len(clients),
        "samples2": sum(n * n for n in sizes),
        "own": sum(sum(n * n for n in row) / sum(row) for row in clients) / UNIT,
        "head": sum(sizes) * change,
        "head2": sum(n * n for n in sizes) * change,
    }


def exam(counts: list[int], **fields: Any) -> dict[str, Any]:
    plain = {
        "counts": counts,
        "samples": [10, 10],
        "trained 0": [10, 0],
        "trained 0.5": [10, 2],
        "trained 1": [9, 5],
        "closed": [8, 8],
        "plain": [9, 5],
        "fitted": counts,
        "held": [2, 2],
        "squares": [n * n / 2 for n in counts],
        "spread": {"total": 20.0, "between": 2.0},
        "surest": {"samples": 10.0, "wrong": 1.0},
    }
    return {**plain, **fields}


def readings(groups: list[Any], exams: list[Any], gram: list[Any], **fields: Any) -> Readings:
    head = {"norms": [2.0, 1.0], "bias": [0.5, -0.5]}
    method = {
        "groups": json.dumps(groups),
        "exams": json.dumps(exams),
        "drift": json.dumps({"head": gram, "body": gram}),
        "head": json.dumps(head),
        "cosine": 0.5,
        "clients": sum(g["clients"] for g in groups),
        **fields,
    }
    first = {key: value for key, value in method.items() if key != "exams"}
    return Readings([{"method": first}, {"method": method}], int(method["clients"]), 2)


def two_groups() -> Readings:
    # Every client has 10 samples: two have one class each, two have both.
    one = group([10, 10], [[10, 0], [0, 10]])
    two = group([10, 10], [[5, 5], [5, 5]])
    # Changes of length 1: in group one opposite to each other, so that their mean is 0; in group
    # two the same.
    return readings([one, two], [exam([10, 10]), exam([10, 10])], [[0.0, 0.0], [0.0, 1.0]])


def test_counts_by_hand() -> None:
    found = two_groups()
    assert found.imbalance([0, 1]) == 1
    # Class 0 and class 1 are each at three of four clients.
    assert found.coverage([0, 1]) == 0.75
    assert found.missing([0, 1]) == 0.25
    assert found.losses() == [0.75, 0.75]


def test_label_skew_by_hand() -> None:
    # Of 40 labels, with shares 1/2: the sum of squares about the mean is 40 · (1 − 1/2) = 20.
    # Between clients: two of them are 1/2 away in both classes, 10 · 2 · 1/4 = 5 each: 10.
    # Within: 20 − 10 = 10. With 3 and 36 degrees of freedom and 10 samples a client:
    between, within = 10 / 3, 10 / 36
    expected = (between - within) / (between + 9 * within)
    assert two_groups().skew([0, 1]) == pytest.approx(expected)
    # Clients with one class each have nothing within; alike ones have less between than chance.
    assert two_groups().skew([0]) == pytest.approx(1)
    assert two_groups().skew([1]) == pytest.approx(-1 / 9)


def test_drift_by_hand() -> None:
    # Six pairs of four clients: in group one one pair with inner product −1, in group two one with
    # +1, and group one's mean change is 0, so that the four pairs across add up to 0.
    assert two_groups().drift("head")([0, 1]) == pytest.approx(0)
    assert two_groups().drift("head")([0]) == pytest.approx(-1)
    assert two_groups().drift("head")([1]) == pytest.approx(1)
    assert two_groups().drift("body")([0, 1]) is None


def test_heads_by_hand() -> None:
    found = two_groups()
    assert found.head_gap([0, 1]) == pytest.approx(80 - 50)
    assert found.tail_gap([0, 1]) == pytest.approx(80 - 70)
    assert found.post_hoc([0, 1]) == pytest.approx(70 - 50)
    assert found.overfit([0, 1]) == pytest.approx(100 - 80)
    assert found.label_noise([0, 1]) == pytest.approx(0.1)
    assert found.forgetting([0, 1]) is None
    rows = found.classes(("a", "b"))
    assert rows[1] == {"class": "b", "samples": 20, "clients": 3, "trained": 0.0, "closed": 0.8}


def test_feature_shift_by_hand() -> None:
    # Two classes of 20 samples at four clients each, 5 a client: Σ n² / N = 100 / 20 = 5, so that
    # n₀ = 2 (20 − 5) / 6 = 5. B = 4 with 6, W = 40 − 4 = 36 with 40 − 8 = 32 degrees of freedom.
    exams = [exam([10, 10], squares=[50, 50]) for _ in range(2)]
    found = readings([group([10, 10], [[5, 5]] * 2)] * 2, exams, [[0, 0], [0, 0]])
    b, w = 4 / 6, 36 / 32
    assert found.shift([0, 1]) == pytest.approx((b - w) / (b + 4 * w))


def test_share_between() -> None:
    assert share_between(6.0, 0.0, 2, 4, 6) == 1
    assert share_between(2.0, 4.0, 2, 4, 6) == 0
    assert share_between(1.0, 1.0, 0, 4, 6) is None


def test_the_interval_is_that_of_a_jackknife() -> None:
    # Means of 0, 3 and 6 without each: of 9/2, 3 and 3/2, whose mean is 3. The variance is
    # (2/3)(9/4 + 0 + 9/4) = 3, that of a mean of three with variance 9. t of 2 at 95 %: 2.919986.
    three = [group([1, 1], [[1, 1]])] * 3
    found = readings(three, [exam([1, 1])] * 3, [[0.0] * 3] * 3)
    values = (0.0, 3.0, 6.0)
    read = found.estimate(lambda groups: sum(values[g] for g in groups) / len(groups))
    half = 2.919986 * 3**0.5
    assert read.value == 3
    assert read.low == pytest.approx(3 - half)
    assert read.high == pytest.approx(3 + half)
    assert found.estimate(lambda groups: 7.0, counted=True) == Estimate(7.0, 7.0, 7.0)


def test_one_group_says_nothing_of_how_sure_it_is() -> None:
    found = readings([group([1, 1], [[1, 1]])], [exam([1, 1])], [[0.0]])
    assert found.estimate(lambda groups: 7.0 if groups else None) == Estimate(7.0)


def test_verdicts() -> None:
    above = next(r for r in READINGS if r.key == "shift")
    below = next(r for r in READINGS if r.key == "coverage")
    shown = Reading("D2", "norms", "", lambda r: r.row_norms)
    assert judged(above, Estimate(0.3, 0.2, 0.4)) == "yes"
    assert judged(above, Estimate(0.05, 0.0, 0.09)) == "no"
    assert judged(above, Estimate(0.3, 0.05, 0.6)) == "unsure"
    assert judged(above, Estimate(0.3)) == "unsure"
    assert judged(above, Estimate(None)) == "unknown"
    assert judged(below, Estimate(0.05, 0.05, 0.05)) == "yes"
    assert judged(below, Estimate(0.5, 0.5, 0.5)) == "no"
    assert judged(shown, Estimate(0.5, 0.4, 0.6)) == "shown"


def test_a_probe_that_nobody_answered_is_one_sentence() -> None:
    with pytest.raises(FedtailError, match="no readings: not enough clients answered"):
        Readings([{"method": {}}], 4, 2)


def test_classes_are_listed_without_adding_up_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [group([3, 1], [[2, 0], [1, 1]])] * 2
    found = readings(groups, [exam([3, 1])] * 2, [[1.0, 0.0], [0.0, 1.0]])
    added: list[str] = []
    plain = Readings._sum

    def noting(self: Readings, name: str, *rest: Any) -> Any:
        added.append(name)
        return plain(self, name, *rest)

    monkeypatch.setattr(Readings, "_sum", noting)
    assert [row["samples"] for row in found.classes(["a", "b"])] == [6, 2]
    assert len(added) == len(set(added))
