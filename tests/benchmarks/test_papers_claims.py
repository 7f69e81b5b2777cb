"""The page of the papers' claims is what its files say, and verdicts follow the rule."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.claims import page
from benchmarks.claims.__main__ import done, keep, late, main, planned
from benchmarks.claims.verdict import Claim, Seen, claims, hours, seen, verdict
from benchmarks.claims.verdict import results as found_results
from fedtail.errors import FedtailError
from fedtail.lock import locked
from fedtail.study.paired import Difference


def test_the_page_is_what_the_files_say() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.text(found_results())


def test_a_paper_has_at_most_five_claims_and_the_paper_prints_each() -> None:
    every = claims()
    assert set(Counter(claim.paper for claim in every).values()) <= {4, 5}
    for claim in every:
        high, low = claim.printed(claim.recipe())
        assert high > low


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (2.0, 10.0, "reproduced"),  # mean 6 of 10 printed
        (2.0, 6.0, "in order only"),  # mean 4
        (-1.0, 9.0, "open"),
        (-6.0, -2.0, "not reproduced"),
    ],
)
def test_verdicts_by_hand(low: float, high: float, said: str) -> None:
    assert verdict(10.0, Difference((low + high) / 2, low, high, None, 3)) == said


def test_one_seed_decides_nothing() -> None:
    assert verdict(10.0, Difference(9.0, None, None, None, 1)) == "open"
    assert verdict(10.0, None) == "not run"


CLAIM = Claim("P", "says", "creff/table1", "CIFAR-10-LT", "IF=100;Dir alpha=0.5", "CReFF", "FedAvg")


def test_runs_of_the_cell_are_found_and_paired_by_seed() -> None:
    def number(
        method: str,
        ours: list[float],
        setting: str = CLAIM.setting,
        failures: list[str] | None = None,
    ) -> dict[str, object]:
        return {
            "dataset": CLAIM.dataset,
            "setting": setting,
            "method": method,
            "metric": "accuracy",
            "ours": ours,
            "failures": failures or [],
        }

    other = {"table": "creff/table1", "numbers": [number("CReFF", [1.0], "IF=50;Dir alpha=0.5")]}
    both = {
        "table": "creff/table1",
        "numbers": [number("FedAvg", [1.0, 5.0]), number("CReFF", [4.0, 8.0])],
    }
    pair = seen(CLAIM, [other, both])
    assert isinstance(pair, Seen)
    assert pair.source is both
    assert (pair.gain.mean, pair.gain.low, pair.gain.high) == (3.0, 3.0, 3.0)
    assert seen(CLAIM, [other]) is None
    # Without one of the seeds the places of values are not those of seeds.
    failed = number("CReFF", [8.0], failures=["seed 0: no memory"])
    assert seen(CLAIM, [{**both, "numbers": [number("FedAvg", [1.0, 5.0]), failed]}]) is None


def test_hours_of_a_claim_are_its_two_cells() -> None:
    # 12,406 samples of imbalance 100 (5,000 to 50), 8 of 20 clients, 10 epochs, 200 rounds, seeds:
    # equal work for both, so twice one method's.
    table = CLAIM.recipe()
    alone = Claim(**{**vars(CLAIM), "method": "FedAvg"})
    assert hours(CLAIM, table) == pytest.approx(hours(alone, table))


def test_a_claim_is_run_and_what_tables_share_is_run_once(tmp_path: Path) -> None:
    # RedGrape's Tables 1 and 6 print accuracy and tail accuracy of the same runs.
    runs, to = tmp_path / "runs", tmp_path / "results"
    by_table = {claim.table: claim for claim in claims() if claim.paper == "RedGrape"}
    done(by_table["redgrape/table1"], "smoke", runs, to)
    once = {path: path.stat().st_mtime_ns for path in runs.glob("*/metrics.jsonl")}
    done(by_table["redgrape/table6"], "smoke", runs, to)
    assert len(once) == 2  # RedGrape and CReFF; FedAvg comes with Table 6
    assert len(list(runs.glob("*/metrics.jsonl"))) == 3
    for path, before in once.items():
        assert path.stat().st_mtime_ns == before
    found = [json.loads((to / f"redgrape_table{n}.json").read_text()) for n in (1, 6)]
    methods = [{number["method"] for number in each["numbers"]} for each in found]
    assert methods == [{"RedGrape", "CReFF"}, {"RedGrape", "FedAvg+CE"}]
    assert all(len(number["ours"]) == 1 for each in found for number in each["numbers"])
    said = by_table["redgrape/table6"].says
    assert found[1]["environment"]["command"] == (
        f"python -m benchmarks.claims --only '{said}' --precision float32"
    )


def test_of_a_run_that_fails_nothing_is_kept(tmp_path: Path) -> None:
    claim = claims()[0]
    table = claim.recipe()
    run = planned(table, claim.cell(table, claim.beside), "smoke", tmp_path / "runs")[0].path
    with locked(run), pytest.raises(FedtailError, match=r"Nothing is kept of it.*in use by"):
        done(claim, "smoke", tmp_path / "runs", tmp_path / "to")
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize("text", ["creff", "ImageNet"])
def test_a_text_that_no_claim_holds_is_refused(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["claims", "--only", text])
    with pytest.raises(SystemExit):
        main()
    assert f"no claim that can be tested holds '{text}'" in capsys.readouterr().err


def test_a_score_is_of_the_last_two_tests_or_of_more_if_the_paper_has_them() -> None:
    creff, redgrape = (
        claim.recipe() for claim in claims() if claim.says[:8] in ("CReFF is", "With all")
    )
    assert late(creff, 10).score("accuracy").last == 20
    assert late(redgrape, 3).score("accuracy").last == 10
    assert creff.score("accuracy").last == 1


def test_runs_in_bfloat16_are_other_runs(tmp_path: Path) -> None:
    claim = claims()[0]
    table = claim.recipe()
    cell = claim.cell(table, claim.method)
    whole, half = (planned(table, cell, "smoke", tmp_path, p) for p in ("float32", "bfloat16"))
    assert [each.experiment.precision for each in half] == ["bfloat16"]
    assert not {each.path for each in whole} & {each.path for each in half}
    assert [each.path for each in planned(table, cell, "smoke", tmp_path)] == [
        each.path for each in whole
    ]


def test_results_of_another_scale_do_not_stay_in_a_file(tmp_path: Path) -> None:
    def found(scale: str, method: str, ours: float) -> dict[str, object]:
        cell = {"dataset": "d", "setting": "s", "metric": "accuracy"}
        return {"scale_is": scale, "numbers": [{**cell, "method": method, "ours": [ours]}]}

    path = tmp_path / "table.json"
    for scale, method, ours in (("old", "a", 1.0), ("new", "a", 2.0), ("new", "b", 3.0)):
        keep(path, found(scale, method, ours), [scale])
    kept = json.loads(path.read_text())
    assert [(number["method"], number["ours"]) for number in kept["numbers"]] == [
        ("a", [2.0]),
        ("b", [3.0]),
    ]
    assert kept["commits"] == ["new"]


def test_what_a_claim_takes_as_in_the_paper_is_known() -> None:
    assert all(hours(claim, claim.recipe()) for claim in claims())
