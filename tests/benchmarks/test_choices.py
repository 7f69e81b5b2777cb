"""What the pages of methods say of their defaults is what the committed result files say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import choices
from benchmarks.results_file import RESULTS
from fedtail import Method

FILES = sorted((RESULTS / "choices").glob("*.json"))
PAGES = Path(__file__).parents[2] / "docs" / "methods"


@pytest.mark.parametrize("question", sorted({file.stem.partition("_")[0] for file in FILES}))
def test_the_page_has_the_table(question: str) -> None:
    assert choices.table(question) in (PAGES / f"{question}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_the_files_are_of_these_questions(path: Path) -> None:
    found = json.loads(path.read_text())["numbers"]
    question, _, where = path.stem.partition("_")
    assert where in choices.PROTOCOLS[question]
    for title, variant in found["variants"].items():
        assert variant["method"] == choices.QUESTIONS[question][title]
        Method.model_validate(variant["method"])


def test_a_question_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["balancefl", "--seeds", "1", "--rounds", "1", "--out", str(tmp_path)]
    choices.main(words)
    found = json.loads((tmp_path / "choices" / "balancefl_digits.json").read_text())["numbers"]
    assert found["seeds"] == [0]
    assert list(found["variants"]) == list(choices.QUESTIONS["balancefl"])
    capsys.readouterr()
    choices.main([*words, "--table"])
    mean = found["variants"]["fedavg"]["accuracy"]["mean"]
    assert f"| fedavg | {mean:.1f} ± 0.0 |" in capsys.readouterr().out
