"""The page of the comparison is what its files say, and ranks are those of the definition."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.comparison import draws, overview, page, plan, ranks, scores
from benchmarks.comparison.__main__ import chosen, do, keep
from fedtail.lock import locked
from fedtail.methods import Method
from fedtail.metrics.scores import SCORES
from fedtail.study.spec import split_spec

MEANS = {"a": {"x": 0.9, "y": 0.5, "z": 0.5}, "b": {"x": 0.2, "y": 0.4, "z": 0.3, "w": 1.0}}


def test_the_page_is_what_the_files_say() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.text(page.read())
    assert page.SCORES_PAGE.read_text(encoding="utf-8") == scores.text(page.read())


def test_the_main_table_is_what_the_files_say() -> None:
    for path, text in page.with_tables(page.read()).items():
        assert path.read_text(encoding="utf-8") == text


def test_the_main_table_by_hand() -> None:
    def entry(balanced: float, few: float | None) -> dict[str, object]:
        return {"kept": {"balanced_accuracy": [balanced, balanced], "few": [few, few]}}

    # bsm is 0.2 and 0.1 above FedAvg where there is a tail; its second word cell is missing.
    # Speakers have no tail.
    cells = {
        "f_cifar10_a": {"fedavg": entry(0.5, 0.1), "bsm": entry(0.7, 0.3)},
        "p_a": {"fedavg": entry(0.4, 0.2), "bsm": entry(0.5, 0.4)},
        "p_b": {"fedavg": entry(0.6, 0.4), "lade": entry(0.9, 0.9)},
        "r_speech": {"fedavg": entry(0.5, None), "bsm": entry(0.5, None)},
        "n_a": {"fedavg": entry(0.9, None), "bsm": entry(0.8, None)},
    }
    rows = overview.main_table(cells).splitlines()
    assert rows[2] == "| `bsm` | 70.0 / 30.0 |  | 50.0 | 80.0 | +15.0 | 2 |"
    assert rows[3] == "| `fedavg` | 50.0 / 10.0 | 50.0 / 30.0 | 50.0 | 90.0 | +0.0 | 3 |"
    assert len(rows) == 4  # lade has one of two cells of a kind, and no other
    assert overview.main_table(cells, ["fedavg"]).splitlines()[2:] == rows[3:]
    # What is ranked: kinds with a tail, and the methods that have all cells of one.
    assert overview.kind_means(cells) == {
        "CIFAR-10-LT, features": {"fedavg": 0.5, "bsm": 0.7},
        "words and texts, features": {"fedavg": 0.5},
    }


def test_all_scores_by_hand() -> None:
    def entry(kept: float, last: float, cost: float) -> dict[str, object]:
        numbers = {key: [kept, None] for key in SCORES}
        no_tail = {key: [None, None] for key in ("many", "medium", "few")}
        late = {key: [last, last] for key in SCORES}
        return {"kept": numbers | no_tail, "last": late, "bytes": cost, "seconds": 3 * cost}

    cells = {
        "n_a": {"fedavg": entry(0.5, 0.4, 2.0), "bsm": entry(0.6, 0.5, 3.0)},
        "n_b": {
            "fedavg": entry(0.7, 0.4, 2.0),
            "bsm": entry(0.8, 0.7, 5.0),
            "lade": entry(1, 1, 1),
        },
    }
    heads, _, *rows = scores.table(cells).splitlines()
    # Without a tail there are no many, medium and few; a seed without a number does not count.
    assert heads == (
        "|  | balanced | last rounds | worst class | all samples | calibration error | traffic | "
        "time |"
    )
    # bsm: (60 + 80) / 2, last (50 + 70) / 2, and (3/2 + 5/2) / 2 of the costs. lade lacks a cell.
    assert rows == [
        "| `bsm` | 70.0 | 60.0 | 70.0 | 70.0 | 70.0 | 2.00 | 2.00 |",
        "| `fedavg` | 60.0 | 40.0 | 60.0 | 60.0 | 60.0 | 1.00 | 1.00 |",
    ]


def test_a_method_with_samples_on_the_server_is_marked() -> None:
    assert overview.marked("fedic,lam=0.3") == "`fedic,lam=0.3` (samples on the server)"
    assert overview.marked("slac") == "`slac`"


def test_ties_share_a_rank_and_only_common_methods_are_ranked() -> None:
    # a: x 1, y and z 2.5 each; b without w: y 1, z 2, x 3.
    assert ranks.mean_ranks(MEANS) == {"y": 1.75, "x": 2.0, "z": 2.25}


def test_the_critical_difference_of_the_paper() -> None:
    # Demšar (2006), Table 5a: q = 2.569 for four methods, two-tailed, 5 %.
    assert ranks.critical_difference(4, 14) == pytest.approx(2.569 * math.sqrt(20 / 84), rel=1e-3)


def test_the_picture_has_a_point_a_method() -> None:
    (axes,) = ranks.picture(ranks.mean_ranks(MEANS), 2).axes
    points = [line for line in axes.lines if line.get_marker() == "o"]
    assert [float(np.asarray(line.get_xdata())[0]) for line in points] == [1.75, 2.0, 2.25]


def test_the_best_mean_of_a_column_is_bold() -> None:
    def entry(values: list[float]) -> dict[str, object]:
        return {"kept": {"balanced_accuracy": values, "few": values}}

    cells = {"f_one": {"fedavg": entry([0.5, 0.7]), "bsm": entry([0.6, 0.8])}}
    told = page.table(cells).splitlines()  # deviations: 0.2 / √2 = 0.141
    assert told[2] == "| `fedavg` | 60.0 ± 14.1 / 60.0 ± 14.1 |"
    assert told[3] == "| `bsm` | **70.0** ± 14.1 / **70.0** ± 14.1 |"


def test_who_has_all_data_in_one_place_is_neither_bold_nor_ranked() -> None:
    def entry(score: float) -> dict[str, object]:
        kept = {key: [score, score] for key in SCORES}
        costs = {"bytes": 1, "seconds": 1, "draws": "even"}
        return {"kept": kept, "last": kept, "seeds": [1, 2], **costs}

    scored = {"centralised": 0.9, "slac": 0.8, "bsm": 0.7, "fedavg": 0.6}
    cells = {f"f_{name}": {m: entry(score) for m, score in scored.items()} for name in "ab"}
    first, second = page.table(cells).splitlines()[2:4]
    assert first.startswith("| `centralised` (all data in one place) | 90.0 ± 0.0 / 90.0 ± 0.0 |")
    assert second.startswith("| `slac` | **80.0** ± 0.0 / **80.0** ± 0.0 |")
    told = " ".join(page.ranked("f", cells).split())
    assert "| `slac` | 1.0 | 1.0 |" in told and "centralised" not in told
    # Three methods in two cells: 2.343 √(12 / 12) = 2.3, and no two mean ranks are 2.3 apart.
    assert "less than 2.3 apart are not told apart (Nemenyi, 95 %; none can be" in told
    four = {f"f_{name}": cells["f_a"] for name in "abcd"}
    assert "none can be" not in page.ranked("f", four)
    # What samples weigh that leave the clients is not counted, so no traffic is told.
    row = next(r for r in scores.table(cells).splitlines() if "`centralised`" in r)
    assert row.endswith("| – | 1.00 |")


def test_how_many_results_have_random_trials_is_said() -> None:
    drawn: dict[str, dict[str, Any]] = {
        "slac": {"trials": 8},
        "bsm": {"trials": 8, "draws": "even"},
        "lade": {"trials": 0},
    }
    assert page.drawn({"r_a": drawn}).startswith(" Trials of 1 of the 3 results shown were random")
    assert page.drawn({"r_a": {"bsm": drawn["bsm"]}}) == ""


def test_ranks_of_rare_classes_are_those_of_the_same_methods_where_there_is_a_tail() -> None:
    def entry(balanced: float, few: float | None) -> dict[str, object]:
        kept = {"balanced_accuracy": [balanced], "few": [few]}
        return {"kept": kept, "seeds": [1], "bytes": 1}

    tail = {
        "fedavg": entry(0.5, 0.1),
        "bsm": entry(0.6, 0.3),
        "slac": entry(0.7, 0.2),
        "lade": entry(0.8, 0.4),  # not in the other cell, so it takes nobody's rank
    }
    none = {name: entry(0.5, None) for name in ("fedavg", "bsm", "slac")}
    told = page.ranked("r", {"r_a": tail, "r_b": none}).splitlines()
    assert "| mean rank, few (1 cell) |" in told[7]
    rows = {row.split("`")[1]: row.split("|")[3].strip() for row in told[9:]}
    assert rows == {"bsm": "1.0", "slac": "2.0", "fedavg": "3.0"}
    told = page.ranked("n", {"n_a": none, "n_b": none}).splitlines()
    assert told[9].split("|")[3].strip() == "–"


def test_every_method_is_planned_somewhere_and_known_by_name() -> None:
    every = {split_spec(method)[0] for cell in plan.cells() for method in plan.planned(cell)}
    assert every == {
        n for n in Method.registry if Method.registry[n].__module__[:7] == "fedtail"
    } - (plan.LEFT_OUT)
    # Two methods want images, and are asked for only where there are some.
    assert {m for m in plan.planned("f_cifar10_if100_dir0.5") if m in plan.NEED_IMAGES} == set()
    assert set(plan.planned("s_fashion_mnist_dir0.5")) > plan.NEED_IMAGES
    assert plan.planned("s_fashion_mnist_dir0.1") == plan.planned("r_hapt") == plan.SHORTLIST


def test_what_is_left_is_what_no_file_has(tmp_path: Path) -> None:
    for method in plan.SHORTLIST[1:]:
        keep(tmp_path / "r_hapt.json", method, {"words": method, "draws": "even"})
    left = plan.missing(tmp_path)
    assert left[:2] == [("r_hapt", "fedavg"), ("r_mitbih", "fedavg")]
    assert len(left) == sum(len(plan.planned(c)) for c in plan.cells()) - len(plan.SHORTLIST) + 1
    # What only three cells have is done last.
    assert left[-1][0] in plan.ALL_METHODS
    assert left[-1][1] not in (*plan.SHORTLIST, *plan.TABLE)
    assert chosen(["r_hapt"], None, True, tmp_path) == [("r_hapt", "fedavg")]
    assert chosen([], ["slac"], True, tmp_path)[0] == ("r_mitbih", "slac")
    assert chosen(["r_hapt"], ["bsm"], False, tmp_path) == [("r_hapt", "bsm")]


def test_results_of_random_trials_are_made_again_where_all_are(tmp_path: Path) -> None:
    cells = {"n_fashion_mnist": {"slac"}, "r_hapt": {"slac", "ccvr"}, "c_cifar10": {"ccvr"}}
    for cell, methods in cells.items():
        for method in methods:
            keep(tmp_path / f"{cell}.json", method, {"words": method})
    left = plan.missing(tmp_path)
    # C has no trials; elsewhere it is one method of R, and all of N.
    assert ("n_fashion_mnist", "slac") in left
    assert ("r_hapt", "ccvr") in left
    assert ("r_hapt", "slac") not in left
    assert ("c_cifar10", "ccvr") not in left
    keep(tmp_path / "r_mitbih.json", "bsm,prior=global", {})  # planned nowhere in R
    assert ("r_mitbih", "bsm,prior=global") in plan.missing(tmp_path)
    keep(tmp_path / "r_hapt.json", "ccvr", {"draws": "even"})
    assert ("r_hapt", "ccvr") not in plan.missing(tmp_path)

    def entry(**more: str) -> dict[str, object]:
        return {"kept": {"balanced_accuracy": [0.5], "few": [None]}, **more}

    shown = {"n_fashion_mnist": {"slac": entry(), "bsm": entry(draws="even")}}
    assert page.table(shown).splitlines()[2:] == ["| `slac` | **50.0**† |", "| `bsm` | **50.0** |"]
    assert page.marks(shown).startswith(" †: ")
    assert page.marks({"n_fashion_mnist": {"bsm": entry(draws="even")}}) == ""


def test_beyond_the_shortlist_nothing_is_tuned_on_s(tmp_path: Path) -> None:
    cell, few = "s_fashion_mnist_dir0.5", {"kept": {"balanced_accuracy": [0.5], "few": [0.2]}}
    assert [plan.trials_of(cell, method) for method in ("bsm", "ldam")] == [4, 0]
    assert [plan.trials_of("f_cifar10_if100_dir0.5", method) for method in ("bsm", "ldam")] == [
        8,
        8,
    ]
    shown: dict[str, dict[str, dict[str, Any]]] = {
        cell: {"bsm": {**few, "draws": "even"}, "ldam": {**few, "draws": None}}
    }
    for method, entry in shown[cell].items():
        keep(tmp_path / f"{cell}.json", method, entry)
    assert not {(cell, "bsm"), (cell, "ldam")} & set(plan.missing(tmp_path))  # neither anew
    assert page.table(shown).splitlines()[-1] == "| `ldam` | **50.0** / **20.0**‡ |"
    assert page.marks(shown).startswith(" ‡: not tuned")


def test_what_draws_change_by_hand() -> None:
    def entry(score: float, **more: str) -> dict[str, object]:
        return {"kept": {"balanced_accuracy": [score - 0.1, score + 0.1]}, **more}

    before = {name: entry(score) for name, score in {"a": 0.2, "b": 0.4, "c": 0.6}.items()}
    scores = {"a": 0.5, "b": 0.4, "c": 0.5999}
    now = {name: entry(score, draws="even") for name, score in scores.items()}
    # +30, 0, -0.01; ranks 1 2 3 become 2 1 3: 1 - 6 (1 + 1) / (3 · 8) = 0.5.
    (row,) = draws.text({"n_x_y": before}, {"n_x_y": now}).splitlines()[-1:]
    assert row == "| x y | 3 | +10.0 | 10.0 | `a` +30.0 | `c` -0.0 | 0.50 |"
    # One that has not been run again does not count, and two are too few for an order.
    assert draws.text({"n_x_y": before}, {"n_x_y": {**now, "a": before["a"]}}) == ""


def test_what_another_process_has_begun_is_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with locked(tmp_path / "runs"):
        do("r_hapt", "fedavg", tmp_path / "runs", tmp_path / "results")
    assert "r_hapt fedavg:" in capsys.readouterr().out
    assert not (tmp_path / "results").exists()
