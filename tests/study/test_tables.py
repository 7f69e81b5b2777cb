"""Tables: at any width the numbers are whole, and no name is broken that could stand whole."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from fedtail.errors import FedtailError
from fedtail.study.grid import Row, folded, grid
from fedtail.study.lines import Line
from fedtail.study.runs import Run
from fedtail.study.tables import as_csv, as_latex, as_text, escape

LONG = "fedavg,loss=balanced_softmax,prior=global,local.lr=0.1"
WIDEST = "1023.9 GB"


def record(accuracy: float | None, few: float | None = 0.125) -> dict[str, Any]:
    return {
        "round": 1,
        "accuracy": accuracy,
        "many": 1.0,
        "medium": 0.5,
        "few": few,
        "worst_class": 0.0,
        "bytes_up": int(1023.9 * 2**30),
        "bytes_down": 0,
        "seconds": 86_400.0,
    }


def line(label: str, *histories: list[dict[str, Any]], **more: Any) -> Line:
    runs = (Run(Path(), {"seed": seed}, records, True) for seed, records in enumerate(histories))
    return Line(label, tuple(runs), **more)


@pytest.mark.parametrize("width", [64, 72, 80, 100, 200])
def test_numbers_are_whole_and_lines_fit(width: int) -> None:
    lines = [
        line(LONG, [record(1.0)], [record(0.0)]),
        line("b", [record(0.5)]),
        line("c", failures={0: "no"}),
    ]
    text = as_text(lines, width).plain
    assert "…" not in text
    assert all(len(row) <= width for row in text.splitlines())
    for number in ("50.0", "±70.7", "100.0", "±0.0", "12.5", WIDEST, "86400 s"):
        assert number in text
    assert LONG in text


def test_mean_and_deviation_by_hand() -> None:
    # 40 and 60: mean 50, deviation sqrt((10² + 10²) / 1) = 14.1.
    found = line("a", [record(0.4)], [record(0.6)])
    assert found.score("accuracy") == pytest.approx((0.5, 0.2**0.5 / 10**0.5))
    assert "50.0 ±14.1" in as_text([found], 120).plain


def test_a_long_name_stands_above_its_numbers() -> None:
    rows = as_text([line(LONG, [record(0.4)], [record(0.6)])], 80).plain.splitlines()
    assert rows[1] == LONG
    assert rows[2].startswith("  50.0 ±14.1")


def test_a_short_name_stands_beside_them_with_deviations_below() -> None:
    rows = as_text([line("fedavg", [record(0.4)], [record(0.6)])], 72).plain.splitlines()
    assert rows[1].startswith("fedavg   50.0  100.0")
    assert rows[2].split() == ["±14.1", "±0.0", "±0.0", "±0.0", "±0.0"]


def test_a_name_that_is_wider_than_the_table_is_folded_at_commas() -> None:
    assert folded("fedavg,loss=focal,local.lr=0.1", ",", 18) == [
        "fedavg,loss=focal,",
        "local.lr=0.1",
    ]
    assert folded("abcdefgh", ",", 3) == ["abc", "def", "gh"]


def test_words_begin_left_and_numbers_end_right() -> None:
    text = grid(("run", "data", "n"), [Row("a", ["b", "1"]), Row("c", ["dd", "22"])], 80, left=1)
    assert text.plain.splitlines() == ["run  data   n", "a    b      1", "c    dd    22"]


def test_a_score_nobody_has_is_a_dash() -> None:
    text = as_text([line("a", [record(0.5, few=None)], [record(0.5, few=None)])], 120).plain
    assert " -  " in text


def test_the_last_round_counts_and_traffic_is_summed() -> None:
    found = line("a", [record(0.1), record(0.9)])
    assert found.score("accuracy") == (0.9, None)
    assert (found.seconds, found.bytes) == (2 * 86_400, 2 * int(1023.9 * 2**30))


def test_equal_reasons_are_said_once() -> None:
    failures = {0: "it broke", 1: "it broke", 2: "[other]"}
    text = as_text([line("a", failures=failures)], 120).plain
    assert "seeds 0, 1: it broke" in text
    assert "seed 2: [other]" in text


def test_differences_are_shown_with_several_seeds_only() -> None:
    one = [line("a", [record(0.5)]), line("b", [record(0.7)])]
    assert "difference" not in as_text(one, 80).plain
    # 10, 20 and 30 points: mean 20, deviation 10, t = 4.3027, half the interval 24.8.
    first = line("a", [record(0.5)], [record(0.5)], [record(0.5)])
    other = line("b", [record(0.6)], [record(0.7)], [record(0.8)])
    shown = as_text([first, other], 80).plain
    assert "difference to a, seed by seed, with its 95 % interval" in shown
    assert "+20.0  [-4.8, +44.8]  0.25" in shown


def test_bold_is_what_is_above_the_first_for_sure() -> None:
    # 20, 21 and 22 points: mean 21, deviation 1, half the interval 2.5: it excludes zero.
    first = line("a", [record(0.5)], [record(0.5)], [record(0.5)])
    sure = line("b", [record(0.70)], [record(0.71)], [record(0.72)])
    unsure = line("c", [record(0.6)], [record(0.7)], [record(0.8)])
    worse = line("d", [record(0.30)], [record(0.29)], [record(0.28)])
    rows = as_latex([first, sure, unsure, worse], ("accuracy",)).splitlines()[4:8]
    assert [r"\mathbf" in row for row in rows] == [False, True, False, False]
    assert as_latex([line("a", [record(0.1)]), line("b", [record(0.9)])]).count("mathbf") == 0


def test_latex_prints_every_letter_as_it_stands() -> None:
    # After the end of a row, * and [...] would be arguments of that end.
    rows = as_latex([line(label, [record(0.5)]) for label in ("[ours]", "*b")]).splitlines()[4:6]
    assert [row.partition(" &")[0] for row in rows] == ["{[}ours]", "{*}b"]
    assert escape("a<b>|c") == r"a\textless{}b\textgreater{}\textbar{}c"


@pytest.mark.parametrize("columns", ["few", [], ["luck"], ["accuracy", "loss"], ["ece"]])
def test_columns_of_latex_are_scores_of_which_more_is_better(columns: Any) -> None:
    with pytest.raises(
        FedtailError, match=r"columns = .* is refused: give a list of accuracy, bal"
    ):
        as_latex([line("a", [record(0.5)])], columns)


def test_csv_reads_back_as_it_was() -> None:
    label, reason = '=a,"b"; τ', "it broke,\r\nfor good\rtwice"
    text = as_csv([line(label, [record(0.1)], [record(0.3)], failures={2: reason})])
    (found,) = csv.DictReader(io.StringIO(text, newline=""))
    assert found["method"] == label
    assert found["failed"] == "seed 2: it broke,\nfor good\ntwice"
    # By hand: mean 0.2, deviation sqrt(2 * 0.1² / 1).
    mean, deviation = float(found["accuracy_mean"]), float(found["accuracy_std"])
    assert (mean, deviation) == pytest.approx((0.2, 0.02**0.5))


def test_a_table_of_no_width_ends() -> None:
    assert folded("ab,c", ",", 0) == ["a", "b", ",", "c"]
    assert "50.0" in as_text([line("ab", [record(0.5)], failures={1: "no"})], 0).plain


def test_a_line_without_runs_has_no_classes() -> None:
    assert line("a", failures={0: "no"}).per_class() == []
