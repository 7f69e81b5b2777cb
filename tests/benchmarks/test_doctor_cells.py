from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.comparison.overview import filled
from benchmarks.doctor import (
    MARKS,
    PAGE,
    canonical,
    cells,
    place,
    ranked_today,
    summary,
    table,
    text,
)
from benchmarks.results_file import RESULTS

GLOBAL, RIDGE = "bsm,prior.name=global", "closed-form,head=ridge"
SCORES = {"fedavg": 50.0, GLOBAL: 60.0, RIDGE: 70.0, "bsm": 60.0}


def test_a_default_need_not_be_named() -> None:
    assert canonical("closed-form,head=ridge") == canonical("closed-form")
    assert canonical("bsm,prior.name=global") == canonical("bsm,prior=global,local.lr=0.3")
    assert canonical("bsm") != canonical("bsm,prior=global")


def test_the_first_that_was_measured_is_ranked() -> None:
    assert place(("slac", "closed-form"), SCORES) == (RIDGE, 1)
    assert place(("slac", "bsm,prior=global", "closed-form"), SCORES) == (GLOBAL, 2)
    assert place(("fedavg",), SCORES) == ("fedavg", 4)
    assert place(("slac",), SCORES) is None


def row(methods: int, rank: int | None) -> dict[str, Any]:
    return {
        "methods": methods,
        "rank": rank,
        "rule": 1,
        "recommended": ["slac", "fedavg"],
        "measured": None if rank is None else "fedavg",
        "score": None if rank is None else 50.0,
        "best": {"bsm": 60.0},
    }


def test_the_hit_rate_by_hand() -> None:
    found = {"a": row(4, 1), "b": row(8, 2), "c": row(10, 3), "d": row(3, 1), "e": row(9, None)}
    told = summary(found)
    assert (told["cells"], told["hits"]) == (3, 2)
    assert told["hit_rate"] == pytest.approx(2 / 3)
    assert told["by_chance"] == pytest.approx((2 / 4 + 2 / 8 + 2 / 10) / 3)
    assert told["first_choice_measured"]["cells"] == 0
    assert told["not_in_view"] == {"cells": 3, "hits": 2, "hit_rate": pytest.approx(2 / 3)}
    assert told["not_measured"] == ["e"]
    assert told["too_few_methods"] == ["d"]
    assert "| e | 9 | 1 | none of its list |" in table(found)


def test_the_page_shows_what_was_said_by_the_scores_that_are_there() -> None:
    saved = json.loads((RESULTS / "doctor.json").read_text())["numbers"]
    assert saved["cells"] == ranked_today(saved["cells"], RESULTS / "comparison")
    assert saved["summary"] == summary(saved["cells"])
    page = PAGE.read_text(encoding="utf-8")
    assert filled(page, text(saved["cells"]), MARKS) == page


def test_cells_have_scores_and_an_experiment() -> None:
    found = {cell.name: cell for cell in cells(RESULTS / "comparison")}
    assert {"mnist", "mitbih_all", "f_cifar10_if100_dir0.1", "digits, balancefl"} <= found.keys()
    for cell in found.values():
        assert all(0 < score <= 100 for score in cell.scores.values())
        assert not any(words.startswith("centralised") for words in cell.scores)
