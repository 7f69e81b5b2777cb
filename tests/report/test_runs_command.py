"""`fedtail runs`: what there is, at 80 columns; what is broken is named and stops nothing."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from command_line import fedtail, one_sentence
from run_folders import record, write_run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    done = write_run(tmp_path / "runs" / "b" / "one", [record(3, 0.5)], data={"name": "digits"})
    os.utime(done / "metrics.jsonl", (time.time() - 3 * 86_400,) * 2)
    write_run(tmp_path / "runs" / "a", [record(1, None)], finished=False)
    return tmp_path / "runs"


def test_runs_are_listed_with_how_far_they_are(folder: Path) -> None:
    done = fedtail("runs")
    assert (done.code, done.err) == (0, "")
    head, first, second = done.out.splitlines()
    assert head.split() == ["run", "method", "data", "rounds", "accuracy", "state", "age"]
    assert first.split()[:6] == ["a", "fedavg", "?", "1/3", "-", "unfinished"]
    assert second.split() == ["b/one", "fedavg", "digits", "3/3", "50.0", "finished", "3", "days"]


def test_one_run_folder_is_listed_by_its_name(folder: Path) -> None:
    assert fedtail("runs", "runs/b/one").out.splitlines()[1].startswith("one ")


def test_a_broken_run_is_named(folder: Path) -> None:
    (folder / "a" / "experiment.toml").write_text("rounds = = 3")
    done = fedtail("runs")
    assert done.code == 0
    assert "experiment.toml' is not valid TOML" in " ".join(done.out.split())
    assert "b/one" in done.out
    assert all(len(line) <= 80 for line in done.out.splitlines())


def test_wrong_input_is_one_sentence(tmp_path: Path) -> None:
    assert "holds no run: begin one with fedtail run" in one_sentence(
        fedtail("runs", str(tmp_path))
    )
    assert "is not a folder" in one_sentence(fedtail("runs", str(tmp_path / "gone")))
