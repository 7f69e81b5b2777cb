"""The ablation of SLAC: what its page says is what the result file says, and it runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import slac
from benchmarks.results_file import RESULTS
from fedtail import Method

PAGE = Path(__file__).parents[2] / "docs" / "methods" / "slac.md"


def test_the_page_has_the_table() -> None:
    numbers = json.loads((RESULTS / "slac.json").read_text())["numbers"]
    assert slac.table(numbers) in PAGE.read_text(encoding="utf-8")
    for key in numbers:
        cell, arm, _ = key.split("/")
        assert cell in slac.CELLS and arm in slac.ARMS


def test_every_arm_is_a_method() -> None:
    made: list[Method[object]] = [Method.model_validate(arm) for arm in slac.ARMS.values()]
    assert len({str(method.describe()) for method in made}) == len(made)


def test_a_table_and_no_run_twice(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = {"last": 1.0, "few": 10.0, "megabytes": 1.0, "blend": None}
    numbers = {f"r_hapt/FedAvg/{seed}": {**run, "mean": 50.0 + 2 * seed} for seed in (0, 1)}
    (tmp_path / "slac.json").write_text(json.dumps({"numbers": numbers}))
    slac.main(["--table", "--out", str(tmp_path)])
    assert "| FedAvg | 50.0 / 10.0 | 52.0 / 10.0 |" in capsys.readouterr().out
    # What is there is not run again.
    slac.main(["r_hapt", "--arms", "FedAvg", "--out", str(tmp_path)])
    assert json.loads((tmp_path / "slac.json").read_text()) == {"numbers": numbers}
