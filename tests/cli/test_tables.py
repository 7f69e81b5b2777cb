"""Tables: at any width the numbers are whole, and a long name is still readable."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from fedtail.cli.results import History, Line
from fedtail.cli.tables import NARROWEST, show_lines

LONG = "fedavg,loss=balanced_softmax,prior=global,local.lr=0.1"
WIDEST = "1023.9 GB"


def record(accuracy: float | None, few: float | None = 0.125) -> dict[str, Any]:
    return {
        "accuracy": accuracy,
        "many": 1.0,
        "medium": 0.5,
        "few": few,
        "worst_class": 0.0,
        "bytes_up": int(1023.9 * 2**30),
        "bytes_down": 0,
        "seconds": 86_400.0,
    }


def shown(lines: list[Line], width: int) -> str:
    text = io.StringIO()
    show_lines(Console(file=text, width=width), lines)
    return text.getvalue()


@pytest.mark.parametrize("width", [NARROWEST, 72, 80, 100, 200])
def test_numbers_are_whole_and_lines_fit(width: int) -> None:
    seeds: dict[int, History] = {0: [record(1.0)], 1: [record(0.0)]}
    text = shown(
        [Line(LONG, seeds), Line("b", {0: [record(0.5)]}), Line("c", {}, {0: "no"})], width
    )
    assert "…" not in text
    assert all(len(line) <= width for line in text.splitlines())
    for number in ("50.0", "±70.7", "100.0", "±0.0", "12.5", WIDEST, "86400 s"):
        assert number in text
    assert "".join(text.split()).count("fedavg,") == 1


def test_mean_and_deviation_by_hand() -> None:
    # 40 and 60: mean 50, deviation sqrt((10² + 10²) / 1) = 14.1.
    line = Line("a", {0: [record(0.4)], 1: [record(0.6)]})
    assert line.score("accuracy") == pytest.approx({"mean": 0.5, "std": 0.2**0.5 / 10**0.5})
    assert "50.0 ±14.1" in shown([line], 120)
    assert "50.0\n" not in shown([line], 120)


def test_a_narrow_table_puts_deviations_below() -> None:
    line = Line(LONG, {0: [record(0.4)], 1: [record(0.6)]})
    rows = shown([line], 80).splitlines()
    assert "50.0" in rows[2]
    assert "±14.1" in rows[3]
    assert rows[2].startswith("fedavg,")


def test_a_score_nobody_has_is_a_dash() -> None:
    text = shown([Line("a", {0: [record(0.5, few=None)], 1: [record(0.5, few=None)]})], 120)
    assert " -  " in text


def test_the_last_round_counts_and_traffic_is_summed() -> None:
    line = Line("a", {0: [record(0.1), record(0.9)]})
    assert line.score("accuracy")["mean"] == 0.9
    assert line.seconds == 2 * 86_400
    assert line.traffic == 2 * int(1023.9 * 2**30)


def test_equal_reasons_are_said_once() -> None:
    line = Line("a", {}, {0: "it broke", 1: "it broke", 2: "[other]"})
    text = shown([line], 120)
    assert "seeds 0, 1: it broke" in text
    assert "seed 2: [other]" in text
