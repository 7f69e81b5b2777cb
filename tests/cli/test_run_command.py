"""`fedtail run`, as a user meets it."""

from __future__ import annotations

import json
import os
import signal
import tomllib
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from command_line import PLUGIN, fedtail, files, one_sentence, write_npz

from fedtail.callbacks import Progress
from fedtail.methods import Method

SHORT = ["--clients", "3", "--rounds", "2"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Method.registry, "_classes", dict(Method.registry._classes))
    write_npz(tmp_path / "mine.npz")
    return tmp_path


def experiment(folder: str) -> dict[str, Any]:
    return tomllib.loads(Path(folder, "experiment.toml").read_text())


def last_hash(text: str) -> str:
    return text.strip().splitlines()[-1].rpartition(" ")[2]


def test_without_an_option_it_trains_on_digits() -> None:
    with patch.object(Progress, "on_round", side_effect=KeyboardInterrupt):
        assert fedtail("run").code == 130
    assert experiment("runs/digits-slac-seed0")["rounds"] == 20


def test_a_run_leaves_its_folder_and_a_table() -> None:
    done = fedtail("run", "rounds=1")
    assert done.code == 0, done.err
    *_, heading, row, last = done.out.splitlines()
    assert heading.split() == ["run", "all", "many", "medium", "few", "worst", "traffic", "time"]
    assert row.startswith("digits-slac-seed0 ")
    assert last.startswith("runs/digits-slac-seed0  model ")
    folder = Path("runs/digits-slac-seed0")
    assert {p.name for p in folder.iterdir()} >= {
        "experiment.toml",
        "split.json",
        "metrics.jsonl",
        "checkpoint",
        "model.json",
        "model.safetensors",
        "env.json",
    }
    assert len(folder.joinpath("metrics.jsonl").read_text().splitlines()) == 1


def test_a_second_run_gets_a_folder_of_its_own() -> None:
    for _ in range(2):
        assert fedtail("run", "--data", "mine.npz", *SHORT, "name=a/b").code == 0
    assert sorted(p.name for p in Path("runs").iterdir()) == ["a-b", "a-b-2"]


def test_a_method_with_fields_of_its_own() -> None:
    spec = ["--method", "fedlc,tau=2,local.lr=0.5"]
    done = fedtail("run", "--data", "mine.npz", *SHORT, *spec, "--lr", "0.25", "--out", "out")
    assert done.code == 0, done.err
    method = experiment("out")["method"]
    assert (method["name"], method["loss"]["tau"], method["local"]["lr"]) == ("fedlc", 2.0, 0.25)


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("lr=0.1", "'method.local.lr' or --lr"),
        ("method.lr=0.1", "'method.local.lr' or --lr"),
        ("sampler=class_balanced", "'method.sampler'"),
        ("batch_size=8", "'method.local.batch_size' or --batch-size"),
        ("alpha=0.3", "'partition.alpha' or --alpha"),
    ],
)
def test_a_slip_leads_to_the_right_key(word: str, meant: str) -> None:
    refused = one_sentence(fedtail("run", "--data", "mine.npz", *SHORT, word, "--out", "out"))
    assert refused == f"unknown key '{word.partition('=')[0]}'; did you mean {meant}?"
    assert not Path("out").exists()


def test_a_file_with_overrides() -> None:
    Path("it.toml").write_text('rounds = 2\nclients = 3\ndata = {name="npz", path="mine.npz"}\n')
    done = fedtail("run", "it.toml", "method.local.lr=0.1", "--seed", "4", "--out", "out")
    assert done.code == 0, done.err
    made = experiment("out")
    assert (made["method"]["local"]["lr"], made["seed"], made["rounds"]) == (0.1, 4, 2)
    again = fedtail("run", "out/experiment.toml", "--out", "again")
    assert last_hash(again.out) == last_hash(done.out)


def test_natural_clients_a_step_tail_and_a_small_network() -> None:
    words = ["--partition", "natural", "--tail", "step", "--imbalance", "2", "--rounds", "1"]
    done = fedtail("run", "--data", "mine.npz", *words, "--out", "out")
    assert done.code == 0, done.err
    assert len(json.loads(Path("out/split.json").read_text())["counts"]) == 3
    assert experiment("out")["tail"]["name"] == "step"
    words = ["--model", "resnet8", "model.width=4", "--rounds", "1", "method.local.steps=1"]
    assert fedtail("run", *words, "--out", "net").code == 0
    assert experiment("net")["model"] == {"name": "resnet8", "width": 4}


def test_a_plug_in_in_one_process_and_in_a_worker() -> None:
    Path("plug.py").write_text(PLUGIN)
    words = ["run", "--data", "mine.npz", *SHORT, "--plugin", "plug.py", "--method", "mine"]
    alone = fedtail(*words, "--out", "alone")
    pool = fedtail(*words, "--workers", "1", "--out", "pool")
    assert alone.code == pool.code == 0, alone.err + pool.err
    assert last_hash(alone.out) == last_hash(pool.out)
    assert experiment("pool")["plugins"] == ["plug.py"]


def test_a_finished_run_is_shown_and_not_run_again(here: Path) -> None:
    done = fedtail("run", "--data", "mine.npz", *SHORT, "--out", "out")
    before = files(here / "out")
    shown = fedtail("run", "--resume", "out")
    assert shown.code == 0
    assert shown.out.startswith("this run is finished: 2 of 2 rounds\n")
    assert shown.out.splitlines()[1:] == done.out.splitlines()[-3:]
    assert files(here / "out") == before


def test_an_interrupted_run_says_how_to_go_on() -> None:
    words = ["run", "--data", "mine.npz", *SHORT, "--out"]
    whole = fedtail(*words, "whole")
    with patch.object(Progress, "on_round", side_effect=[None, KeyboardInterrupt]):
        stopped = fedtail(*words, "out")
    assert stopped.code == 130
    assert stopped.out.endswith("go on with: fedtail run --resume out\n")
    assert stopped.err == ""
    resumed = fedtail("run", "--resume", "out")
    assert "continued after round 1" in resumed.out
    assert last_hash(resumed.out) == last_hash(whole.out)


def test_a_run_that_is_asked_to_end_says_how_to_go_on() -> None:
    words = ["run", "--data", "mine.npz", *SHORT, "--out", "out"]
    ask = partial(os.kill, os.getpid(), signal.SIGTERM)
    with patch.object(Progress, "on_round", side_effect=lambda record: ask()):
        stopped = fedtail(*words)
    assert stopped.code == 128 + signal.SIGTERM == 143
    assert stopped.out.endswith("go on with: fedtail run --resume out\n")
    assert stopped.err == ""
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert fedtail("run", "--resume", "out").code == 0


def test_a_damaged_model_is_not_shown() -> None:
    assert fedtail("run", "--data", "mine.npz", *SHORT, "--out", "out").code == 0
    model = Path("out/model.safetensors")
    data = model.read_bytes()
    model.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    for words in (["run", "--resume", "out"], ["audit", "out"], ["report", "--features", "out"]):
        said = one_sentence(fedtail(*words))
        assert "model.safetensors' is damaged: its SHA-256 is not that of" in said
    assert said.endswith("if you remove it, fedtail run --resume out writes it again")
    model.unlink()
    assert fedtail("run", "--resume", "out").code == 0
    assert model.read_bytes() == data


def test_a_finished_run_without_its_numbers_has_those_of_the_checkpoint() -> None:
    done = fedtail("run", "--data", "mine.npz", *SHORT, "--out", "out")
    last = Path("out/metrics.jsonl").read_text().splitlines()[-1]
    Path("out/metrics.jsonl").write_text("")
    again = fedtail("run", "--resume", "out")
    assert again.code == 0
    assert again.out.count("is damaged: what it held of round 1 is lost") == 1
    assert last_hash(again.out) == last_hash(done.out)
    assert Path("out/metrics.jsonl").read_text() == f"{last}\n"


def test_a_tracker_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tensorboard", None)
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    done = fedtail("run", "--data", "mine.npz", *SHORT, 'track=["tensorboard"]', "--out", "out")
    assert done.code == 2
    assert "pip install '.[tensorboard]'" in done.err
    assert not Path("out").exists()


def test_the_best_round_is_kept_and_a_finished_run_goes_on() -> None:
    words = ["--method", "fedavg", "--validation", "0.2", "--keep", "best", "--clients", "3"]
    words += ["--rounds", "2"]
    done = fedtail("run", *words, "--out", "best")
    assert done.code == 0, done.err
    assert "  validation 0." in done.out
    assert " is shipped: validation balanced_accuracy 0." in done.out
    again = fedtail("run", "--resume", "best")
    assert "this run is finished: 2 of 2 rounds" in again.out
    assert " is shipped: validation balanced_accuracy 0." in again.out
    longer = fedtail("run", "--resume", "best", "--rounds", "4")
    assert longer.code == 0, longer.err
    assert "4 rounds, continued after round 2" in longer.out
    assert experiment("best")["rounds"] == 4
    whole = fedtail("run", *words[:-1], "4", "--out", "whole")
    assert last_hash(longer.out) == last_hash(whole.out)
    fewer = one_sentence(fedtail("run", "--resume", "best", "rounds=3"))
    assert fewer == "'best' has done 4 rounds: rounds = 3 is fewer"
    assert Path("best", "model.safetensors").exists()


def test_keeping_the_best_needs_something_to_choose_by() -> None:
    said = one_sentence(fedtail("run", "--keep", "best"))
    assert said.startswith("keep = 'best' needs samples that are held out of training")
    assert not Path("runs").exists()
