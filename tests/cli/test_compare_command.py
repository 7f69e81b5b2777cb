"""`fedtail compare`: one table, continued by the same command, whole when one run fails."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from unittest.mock import patch

import numpy as np
import pytest
from command_line import PLUGIN, fedtail, files, write_npz

from fedtail.callbacks import Progress, read_records
from fedtail.methods import Method

BASE = ["compare", "--data", "mine.npz", "--clients", "3", "--rounds", "3", "--out", "out"]
TWO = [*BASE, "--method", "fedavg", "--method", "fedavg,loss=balanced_softmax,local.lr=0.1"]
FRAGILE = [*BASE, "--plugin", "plug.py", "--method", "fragile", "--method", "mine"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Method.registry, "_classes", dict(Method.registry._classes))
    write_npz(tmp_path / "mine.npz")
    Path("plug.py").write_text(PLUGIN)
    return tmp_path


def test_methods_and_seeds_become_one_table_and_two_files() -> None:
    done = fedtail(*TWO, "--seeds", "2")
    assert done.code == 0, done.err
    rows = json.loads(Path("out/comparison.json").read_text())
    assert [(row["method"], row["seeds"], row["failed"]) for row in rows] == [
        ("fedavg", [0, 1], {}),
        ("fedavg,loss=balanced_softmax,local.lr=0.1", [0, 1], {}),
    ]
    last = [read_records(f"out/fedavg-seed{seed}/metrics.jsonl")[-1] for seed in (0, 1)]
    accuracies = [record["accuracy"] for record in last]
    expected = {"mean": fmean(accuracies), "std": stdev(accuracies)}
    assert rows[0]["scores"]["accuracy"] == pytest.approx(expected)
    with Path("out/comparison.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [row["method"] for row in table] == [row["method"] for row in rows]
    assert table[0]["seeds"] == "0 1"
    assert float(table[0]["accuracy_mean"]) == rows[0]["scores"]["accuracy"]["mean"]
    assert f"{100 * fmean(accuracies):.1f}" in done.out
    assert '"seeds":[0,1]' in Path("out/report.html").read_text(encoding="utf-8")
    assert f"±{100 * stdev(accuracies):.1f}" in done.out


def test_the_same_command_runs_nothing_again(here: Path) -> None:
    first = fedtail(*TWO)
    before = files(here / "out")
    with patch("fedtail.study.settle.run", side_effect=AssertionError("run again")):
        again = fedtail(*TWO)
    assert again.code == 0
    assert again.out.count("done already") == 2
    assert files(here / "out") == before
    assert again.out.splitlines()[-6:] == first.out.splitlines()[-6:]


def test_an_interrupted_comparison_goes_on_with_the_same_command(here: Path) -> None:
    with patch.object(Progress, "on_round", side_effect=[None, KeyboardInterrupt]):
        stopped = fedtail(*TWO)
    assert stopped.code == 130
    assert stopped.out.endswith("interrupted; the same command goes on from here\n")
    assert not Path("out/comparison.json").exists()
    done = fedtail(*TWO)
    assert done.code == 0
    assert "fedavg seed 0: 3 rounds, continued after round 1" in done.out
    whole = fedtail(*TWO, "--out", "whole")
    assert whole.code == 0
    for name in ("fedavg-seed0", "fedavg-loss=balanced_softmax-local.lr=0.1-seed0"):
        model = f"{name}/model.safetensors"
        assert Path("out", model).read_bytes() == Path("whole", model).read_bytes()


def test_a_comparison_that_is_asked_to_end_goes_on_with_the_same_command() -> None:
    ask = partial(os.kill, os.getpid(), signal.SIGTERM)
    with patch.object(Progress, "on_round", side_effect=lambda record: ask()):
        stopped = fedtail(*TWO)
    assert stopped.code == 143
    assert stopped.out.endswith("interrupted; the same command goes on from here\n")


def test_one_that_fails_does_not_stop_the_others() -> None:
    Path("broken").touch()
    done = fedtail(*FRAGILE)
    assert done.code == 1
    assert "fragile seed 0 failed: ZeroDivisionError: nothing to divide by (plug.py, line" in (
        done.out
    )
    table = done.out.rpartition("\nrun ")[2]
    assert "failed" in table.splitlines()[1]
    assert "seed 0: ZeroDivisionError:" in " ".join(table.split())
    fragile, mine = json.loads(Path("out/comparison.json").read_text())
    assert fragile["seeds"] == []
    assert fragile["failed"]["0"].startswith("ZeroDivisionError: nothing to divide by")
    assert fragile["scores"]["accuracy"] == {"mean": None, "std": None}
    assert mine["seeds"] == [0]
    Path("broken").unlink()
    mended = fedtail(*FRAGILE)
    assert mended.code == 0
    assert "fragile seed 0: 3 rounds, continued after round 1" in mended.out
    assert "mine seed 0: done already" in mended.out


def test_changed_settings_are_refused_for_that_run_only() -> None:
    assert fedtail(*BASE, "--method", "fedavg").code == 0
    done = fedtail(*BASE, "--method", "fedavg", "--method", "fedavg,buffers=first", "--lr", "0.2")
    assert done.code == 1
    one, other = json.loads(Path("out/comparison.json").read_text())
    assert "holds a run with another 'method'" in one["failed"]["0"]
    assert other["seeds"] == [0]


def test_settings_that_no_run_agrees_with_are_wrong_input(here: Path) -> None:
    assert fedtail(*TWO).code == 0
    before = files(here / "out")
    done = fedtail(*TWO, "--rounds", "4")
    assert done.code == 2
    assert done.err == (
        "error: its folder holds a run with another 'rounds'; choose another --out\n"
    )
    assert files(here / "out") == before


def test_runs_on_a_data_file_that_was_changed_are_refused(here: Path) -> None:
    one = [*BASE, "--method", "fedavg"]
    assert fedtail(*one).code == 0
    before = files(here / "out")
    write_npz(here / "mine.npz", x_train=np.zeros((40, 5), np.float32))
    done = fedtail(*one)
    said = "error: its folder holds a run on other data; choose another --out\n"
    assert (done.code, done.err) == (2, said)
    Path("mine.npz").unlink()
    assert "done already" in fedtail(*one).out
    assert files(here / "out") == before


def test_untested_runs_are_no_answer_to_who_wants_tests(here: Path) -> None:
    assert fedtail(*TWO, "test=none").code == 0
    assert "done already" in fedtail(*TWO, "test=none").out
    before = files(here / "out")
    done = fedtail(*TWO)
    assert (done.code, done.err) == (
        2,
        "error: its folder holds a run whose model was not tested (it was run with test = 'none'); "
        "choose another --out\n",
    )
    assert files(here / "out") == before


def test_a_round_that_was_tested_before_tests_were_left_out_is_no_result(here: Path) -> None:
    one = [*BASE, "--method", "fedavg"]
    with patch.object(Progress, "on_round", side_effect=[None, KeyboardInterrupt]):
        assert fedtail(*one).code == 130
    assert fedtail(*one, "test=none").code == 0
    (row,) = json.loads(Path("out/comparison.json").read_text())
    assert row["scores"]["accuracy"]["mean"] is None
    assert fedtail(*one).code == 2


def test_tests_that_come_late_are_the_result(here: Path) -> None:
    one = [*BASE, "--method", "fedavg"]
    with patch.object(Progress, "on_round", side_effect=[None, KeyboardInterrupt]):
        assert fedtail(*one, "test=none").code == 130
    assert fedtail(*one).code == 0
    (row,) = json.loads(Path("out/comparison.json").read_text())
    assert row["scores"]["accuracy"]["mean"] is not None
    assert 'test = "every"' in Path("out/fedavg-seed0/experiment.toml").read_text()


def test_other_workers_are_the_same_experiment() -> None:
    assert fedtail(*BASE, "--method", "fedavg").code == 0
    assert "done already" in fedtail(*BASE, "--method", "fedavg", "--workers", "2").out


def test_a_grid_and_jobs() -> None:
    grid = ["--grid", "local.lr=0.1,1e-3", "--method", "fedavg", "--method", "fedlc"]
    done = fedtail(*BASE, *grid, "--grid", "tau=0.5,2", "--jobs", "2")
    assert done.code == 0, done.err
    typed = [row["method"] for row in json.loads(Path("out/comparison.json").read_text())]
    assert typed == [
        "fedavg,local.lr=0.1",
        "fedavg,local.lr=1e-3",
        "fedlc,local.lr=0.1,tau=0.5",
        "fedlc,local.lr=0.1,tau=2",
        "fedlc,local.lr=1e-3,tau=0.5",
        "fedlc,local.lr=1e-3,tau=2",
    ]
    assert "run 6 of 6: fedlc,local.lr=1e-3,tau=2 seed 0, about " in done.out
    alone = fedtail(*BASE, *grid, "--grid", "tau=0.5,2", "--out", "alone")
    assert alone.code == 0
    for path in Path("out").rglob("model.safetensors"):
        assert path.read_bytes() == Path("alone", *path.parts[1:]).read_bytes()


def test_side_by_side_one_that_fails_does_not_stop_the_others() -> None:
    Path("broken").touch()
    done = fedtail(*FRAGILE, "--jobs", "2")
    assert done.code == 1
    assert "fragile seed 0 failed: ZeroDivisionError: nothing to divide by (plug.py, line" in (
        done.out
    )
    assert "mine seed 0: done\n" in done.out
    Path("broken").unlink()
    assert fedtail(*FRAGILE, "--jobs", "2").code == 0


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_what_all_runs_warn_of_is_said_once(jobs: str) -> None:
    done = fedtail(*TWO, "--seeds", "2", "--imbalance", "1", "--jobs", jobs)
    assert done.code == 0, done.err
    assert done.out.count("the training data has no tail") == 1


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_side_by_side_can_be_interrupted(here: Path, number: signal.Signals) -> None:
    words = [*TWO, "--rounds", "3000", "--jobs", "2"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "fedtail", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    ) as process:
        while len(list(here.glob("out/*/metrics.jsonl"))) < 2:
            time.sleep(0.1)
        # A terminal sends Ctrl-C to all processes of the command.
        os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert err == ""
    assert out.endswith("interrupted; the same command goes on from here\n")
    # Nobody is left who holds a folder.
    assert list(here.glob("out/*/lock")) == []
    assert list(here.glob("out/*/model.safetensors")) == []


def test_seeds_are_counted_from_the_one_given() -> None:
    assert fedtail(*BASE, "--method", "fedavg", "--seeds", "2", "seed=5").code == 0
    (row,) = json.loads(Path("out/comparison.json").read_text())
    assert row["seeds"] == [5, 6]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name at least one method to compare"),
        (["--method", "fedavgg"], "fedavgg: method: unknown method 'fedavgg'; did you"),
        (["--method", "fedavg,locl.lr=1"], "unknown key 'locl.lr'; did you mean 'local.lr'?"),
        (["--method", "fedavg,local"], "'local' is not of the form"),
        (["--method", "fedavg,lr=1"], "unknown key 'lr'; did you mean 'local.lr'?"),
        (
            ["--method", "fedavg", "lr=1"],
            "unknown key 'lr'; did you mean 'method.local.lr' or --lr",
        ),
        (["--method", "fedavg", "--grid", "tau=1"], "none of the methods has a field 'tau'"),
        (["--method", "fedavg", "--grid", "lr"], "--grid 'lr' is not of the form field=value"),
        (["--method", "fedavg", "--jobs", "0"], "--jobs 0 is refused: give at least 1"),
        (["--method", "fedavg", "--seeds", "0"], "--seeds 0 is refused: give at least 1"),
        (["--method", "fedavg", "seed=x"], "'seed' = 'x' is refused: give a whole number"),
        (["--method", "fedavg", "--data", "gone.npz"], "there is no file gone.npz"),
        (["--method", "fedavg", "--per-round", "4"], "per_round = 4 is more than the 3 clients"),
    ],
)
def test_wrong_input_leaves_nothing(words: list[str], said: str) -> None:
    done = fedtail(*BASE, *words)
    assert done.code == 2
    assert said in done.err
    assert done.err.count("\n") == 1
    assert not Path("out").exists()
