"""What bad clients do: the attacks by hand, and the page says what the result file says."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.attacks import (
    ALONE,
    ATTACKS,
    RARE,
    SCORES,
    Attack,
    outcome,
    plan,
    poisoned,
    protocol,
    rows_of,
    wanted,
)
from benchmarks.attacks_page import HOW, PAGE, finding, page
from benchmarks.results_file import RESULTS
from fedtail.engines.executor import Done
from fedtail.protocol import Payload
from fedtail.setting import prepare


def test_the_page_is_written_from_the_result_file() -> None:
    found = json.loads((RESULTS / "attacks.json").read_text(encoding="utf-8"))
    rows = found["numbers"]["rows"]
    assert {(r["attack"], r["attackers"], r["defence"]) for r in rows} <= set(plan())
    assert all(len(r[name]) == len(r["seeds"]) for r in rows for name in SCORES)
    assert PAGE.read_text(encoding="utf-8") == page(found)


def test_the_finding_is_sorted_by_what_is_left() -> None:
    rows: dict[tuple[str, int, str], dict[str, Any]]
    rows = {(ALONE, 0, d): {"rare": [60.0, 40.0]} for d in HOW}
    rows[ALONE, 0, "median"] = {"rare": [4.0, 2.0]}
    rows[ALONE, 0, "Krum"] = {"rare": [25.0, 15.0]}
    rows[ALONE, 0, "multi-Krum"] = {"rare": [44.0]}
    told = finding(rows, ALONE).splitlines()
    assert told[0] == "The plain mean finds 50.0 % of the three rarest classes."
    assert told[1].endswith("is left): `median` (3.0 %).")
    assert told[2] == "These lose more than a third: `krum`, `share=0.3` (20.0 %)."
    assert told[3] == "These lose more than five points: `multi_krum`, `share=0.3` (44.0 %)."
    assert "geometric_median" in told[4]


def test_a_log_becomes_rows() -> None:
    log: dict[str, dict[str, Any]] = {
        f"none/0/median/20/{seed}": {**dict.fromkeys(SCORES, float(seed)), "commit": "abc"}
        for seed in (1, 0)
    }
    log["none/0/median/8/2"] = dict.fromkeys(SCORES, 9.0)  # of another number of rounds
    (row,) = rows_of(log, 20)
    assert row["seeds"] == [0, 1] and row["rare"] == [0.0, 1.0] and row["commits"] == ["abc"]
    runs = wanted(seeds=3, attack_seeds=1)
    assert len(runs) == 3 * 18 + 80 and len(set(runs)) == len(runs)
    assert [run[1] for run in runs[:54]] == [0] * 54


def test_what_attackers_send() -> None:
    def done(*numbers: float) -> Done:
        return Done(Payload({"w": torch.tensor(numbers)}), {})

    sent, own = torch.tensor([1.0, 1.0]), torch.tensor([3.0, 0.0])
    honest = [done(1.0, 4.0), done(3.0, 4.0)]
    setting = prepare(protocol(0, "none", 1))
    expected = {
        "times 100": [201.0, -99.0],  # 1 + 100 (3 − 1), 1 + 100 (0 − 1)
        "sign flip": [-19.0, 11.0],
        "label flip": [3.0, 0.0],  # honest training; the labels are wrong
        "backdoor": [3.0, 0.0],
        "little is enough": [0.5, 4.0],  # mean 2, deviation 1; mean 4, deviation 0
    }
    for kind in ATTACKS:
        attack = Attack(setting.runtime(), kind=kind)
        assert attack.tensor("w", sent, own, honest).tolist() == pytest.approx(expected[kind])


def test_what_attackers_hold() -> None:
    setting = prepare(protocol(0, "none", 1))
    counts = [setting.federation.counts(k) for k in range(10)]
    flipped = poisoned(setting, "label flip", [0]).federation
    assert torch.equal(flipped.counts(0), counts[0].flip(0))
    assert torch.equal(flipped.counts(1), counts[1])
    # Ten copies of the 7 samples of the rarest class, called the most frequent one.
    backdoor = poisoned(setting, "backdoor", [0]).federation
    assert (backdoor.counts(0) - counts[0]).tolist() == [70] + [0] * 9
    alone = poisoned(setting, ALONE, []).federation
    held = np.array([alone.counts(k).tolist() for k in range(10)])
    assert ((held[:, -RARE:] > 0).sum(axis=0) == 1).all()
    assert held.sum(axis=0).tolist() == list(setting.class_counts)


def test_one_shouting_client_owns_a_plain_mean_and_no_median() -> None:
    lost = outcome(0, "none", "times 100", 1, rounds=2)
    kept = outcome(0, "median", "times 100", 1, rounds=2)
    assert lost.keys() == set(SCORES)
    assert lost["all"] < 25 < kept["all"]
