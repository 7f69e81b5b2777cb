"""A search: the same budget for all, by what clients hold out, whatever runs beside or stops it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import fedtail, one_sentence, write_npz

from fedtail import Arrays, Experiment, FedtailError, Method, tune
from fedtail.callbacks import Progress, read_records
from fedtail.study.space import TUNABLE, Range, usual_space

BASE = ["tune", "--data", "mine.npz", "--clients", "3", "--rounds", "4", "--out", "out"]


@pytest.fixture
def held_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the words that hold samples out."""
    monkeypatch.chdir(tmp_path)
    write_npz(tmp_path / "mine.npz")
    return ["validation=0.3"]


def found(folder: str = "out") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(Path(folder, "tuned.json").read_text())
    return rows


def test_every_method_has_the_same_budget_and_the_best_can_be_compared(
    held_out: list[str],
) -> None:
    methods = ["--method", "fedavg", "--method", "fedlc,local.lr=0.1"]
    done = fedtail(*BASE, *held_out, *methods, "--trials", "3")
    assert done.code == 0, done.err
    assert "run 6 of 6" in done.out
    first, second = found()
    assert [first["label"], second["label"]] == ["fedavg", "fedlc,local.lr=0.1"]
    assert (first["trials"], second["trials"]) == (3, 3)
    assert first["words"].startswith("fedavg,local.lr=")
    assert second["words"].startswith("fedlc,local.lr=0.1,tau=")  # what was typed stays
    words = done.out.split("--seeds 3 ")[1].split("\n")[0].split()
    assert words == ["--method", first["words"], "--method", second["words"]]
    assert fedtail("compare", *BASE[1:-1], "cmp", *words).code == 0


def test_the_score_is_that_of_the_best_trial(held_out: list[str]) -> None:
    assert fedtail(*BASE, *held_out, "--method", "fedavg", "--trials", "3").code == 0
    (row,) = found()
    last = [read_records(path)[-1] for path in Path("out").rglob("metrics.jsonl")]
    scores = [record["validation"]["balanced_accuracy"] for record in last]
    assert row["score"] == max(scores)
    assert {record["accuracy"] for record in last} == {None}  # the test set is not looked at


def test_a_loss_is_shown_as_it_is(held_out: list[str]) -> None:
    done = fedtail(*BASE, *held_out, "score=loss", "--method", "fedavg", "--trials", "2")
    assert done.code == 0, done.err
    (row,) = found()
    last = [read_records(path)[-1] for path in Path("out").rglob("metrics.jsonl")]
    assert row["score"] == min(record["validation"]["loss"] for record in last) > 0
    assert f" {row['score']:.4f} " in done.out


def test_a_database_that_is_none_is_one_sentence(held_out: list[str]) -> None:
    Path("out").mkdir()
    Path("out/tune.db").write_text("no database" * 100)
    said = one_sentence(fedtail(*BASE, *held_out, "--method", "fedavg"))
    assert said.startswith("'out/tune.db' cannot be used as a database of trials (")
    assert Path("out/tune.db").read_text() == "no database" * 100


def test_a_search_goes_on_where_it_was_stopped(
    held_out: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [*BASE, *held_out, "--method", "fedlc"]
    assert fedtail(*command, "--trials", "7").code == 0
    told, heard = [], Progress.on_round

    def interrupt(self: Progress, record: Any) -> None:
        told.append(record)
        if len(told) == 10:
            raise KeyboardInterrupt
        heard(self, record)

    other = ["other" if word == "out" else word for word in command]
    monkeypatch.setattr(Progress, "on_round", interrupt)
    stopped = fedtail(*other, "--trials", "7")
    assert stopped.code == 130
    assert stopped.out.endswith("interrupted; the same command goes on from here\n")
    # On with fewer trials, and then with as many as the other had.
    assert fedtail(*other, "--trials", "5").code == 0
    assert fedtail(*other, "--trials", "7").code == 0
    assert found("other") == found("out")


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_side_by_side_finds_the_same(held_out: list[str]) -> None:
    if not held_out:
        pytest.skip("the stand-in is not known to other processes")
    command = [*BASE, *held_out, "--method", "fedavg", "--method", "fedlc", "--trials", "7"]
    assert fedtail(*command).code == 0
    assert fedtail(*command, "--jobs", "2", "--out", "beside").code == 0
    assert found("beside") == found("out")


def test_what_promises_little_is_given_up(held_out: list[str]) -> None:
    # A rate of 1e-9 learns nothing, and most of the first five trials have another.
    words = ["--method", "fedavg", "--grid", "local.lr=0.5,0.4,0.3,1e-9", "--trials", "12"]
    done = fedtail("tune", "--imbalance", "5", "--rounds", "4", "--out", "out", *held_out, *words)
    (row,) = found()
    assert row["words"] != "fedavg,local.lr=1e-9"
    assert (row["trials"], row["failed"]) == (12, 0)
    assert row["given_up"] == done.out.count(": given up") > 0
    unfinished = [p for p in Path("out").rglob("trial-*") if not (p / "model.safetensors").exists()]
    assert len(unfinished) == row["given_up"]


def test_runs_that_fail_are_counted(held_out: list[str]) -> None:
    words = [*BASE, *held_out, "--method", "fedavg", "--grid", "local.lr=1e20", "--trials", "2"]
    done = fedtail(*words)
    assert done.code == 1
    (row,) = found()
    assert (row["failed"], row["score"], row["words"]) == (2, None, "fedavg")
    assert "compare them" not in done.out


DYING = '''
import os
from pathlib import Path

from fedtail import FedAvg, Method


@Method.register("dying")
class Dying(FedAvg):
    """Ends its process for as long as there is a file called memory."""

    family = "own"
    paper = "none"

    def aggregate(self, s, found, server):
        if Path("memory").exists():
            os._exit(9)
        return super().aggregate(s, found, server)
'''


def test_a_trial_whose_process_died_is_done_again(
    held_out: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Method.registry, "_classes", dict(Method.registry._classes))
    Path("dying.py").write_text(DYING)
    Path("memory").touch()
    words = [*BASE, *held_out, "--plugin", "dying.py", "--method", "dying", "--trials", "2"]
    died = fedtail(*words, "--jobs", "2")
    assert (died.code, Path("out/tuned.json").exists()) == (1, False)
    assert "its process ended with exit code 9" in died.err
    assert died.err.endswith("use fewer --jobs); the same command goes on from here\n")
    Path("memory").unlink()
    done = fedtail(*words)
    assert done.code == 0, done.err
    assert (found()[0]["trials"], found()[0]["failed"]) == (2, 0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name at least one method to tune"),
        (["--method", "fedavg", "--trials", "0"], "--trials 0 is refused"),
        (["--method", "fedavg", "--jobs", "0"], "--jobs 0 is refused"),
        (["--method", "fedavg", "--range", "tau=1..2"], "none of the methods has a field 'tau'"),
        (["--method", "fedavg", "--range", "lr=1..2"], "did you mean 'local.lr'?"),
        (["--method", "fedavg", "--range", "rounds=1..2"], "'rounds' is not searched"),
        (["--method", "fedavg", "--range", "local.lr"], "not of the form field=low..high"),
        (["--method", "fedavg", "--range", "local.lr=2..1"], "the lower bound comes first"),
        (["--method", "fedavg", "--range", "local.lr=0..1:log"], "above zero"),
        (["--method", "fedavg", "--range", "local.lr=a..b"], "is no range"),
        (["--method", "fedavg", "--range", "local.lr=1..2:lin"], "is no range"),
        (["--method", "ifca", "--range", "clusters=1.2..3.4:int"], "of :int are whole numbers"),
        (["--method", "ifca", "--range", "clusters=0.3..2:log:int"], "of :int are whole numbers"),
        (["--method", "fedavg", "--range", "local.lr=-1..2"], "local.lr' = -1"),
        (["--method", "fedavg,lr=1"], "did you mean 'local.lr'?"),
    ],
)
def test_wrong_input_leaves_nothing(held_out: list[str], words: list[str], said: str) -> None:
    assert said in one_sentence(fedtail(*BASE, *held_out, *words))
    assert not Path("out").exists()


def test_another_search_in_the_same_folder_is_refused(held_out: list[str]) -> None:
    command = [*BASE, *held_out, "--method", "fedavg", "--trials", "1"]
    assert fedtail(*command).code == 0
    said = one_sentence(fedtail(*command, "--rounds", "5"))
    assert said == "'out' holds a search of 'fedavg' with another 'rounds'; choose another --out"
    said = one_sentence(fedtail(*command, "--range", "local.lr=0.1..0.2"))
    assert "with another range of 'local.lr'" in said
    assert fedtail(*command, "checkpoint_every=2").code == 0  # which changes no result


def test_trials_on_other_data_are_not_mixed(held_out: list[str]) -> None:
    command = [*BASE, *held_out, "--method", "fedavg"]
    assert fedtail(*command, "--trials", "1").code == 0
    write_npz(Path("mine.npz"), x_train=np.zeros((40, 5), np.float32))
    said = one_sentence(fedtail(*command, "--trials", "2"))
    assert said == "'out' holds a search of 'fedavg' on other data; choose another --out"


def test_clients_that_the_data_have_are_those_of_the_trials(tmp_path: Path) -> None:
    y = np.arange(80) % 4
    x = np.random.default_rng(0).normal(size=(80, 5)).astype(np.float32)
    data = Arrays(x, y, x[:8], y[:8], client_train=np.arange(80) // 16)
    one = Experiment(data=data, rounds=1, validation=0.25)
    tune(one, ["fedavg"], trials=1, out=tmp_path)
    (split,) = (json.loads(path.read_text()) for path in tmp_path.rglob("split.json"))
    assert split["recipe"]["partition"] == {"name": "natural"}
    assert len(split["clients"]) == 5


def test_without_held_out_samples_nothing_is_chosen(tmp_path: Path) -> None:
    with pytest.raises(FedtailError, match="a search needs samples that clients hold out"):
        tune(Experiment(rounds=1), ["fedavg"], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def ours() -> list[str]:
    return [n for n in Method.registry if Method.registry[n].__module__.startswith("fedtail.")]


@pytest.mark.parametrize("name", ours())
def test_the_bounds_of_every_method_are_values_it_takes(name: str) -> None:
    space = usual_space(Method.registry[name])
    assert ("local.lr" in space) == ("local" in Method.registry[name].model_fields)
    for end in ("low", "high"):
        plain: dict[str, Any] = {"name": name}
        for path, text in space.items():
            bound = getattr(Range.read(text), end)
            at = plain
            *sections, last = path.split(".")
            for section in sections:
                at = at.setdefault(section, {})
            at[last] = round(bound) if Range.read(text).whole else bound
        Method.model_validate(plain)


def test_the_table_of_spaces_names_methods_and_a_child_has_its_parents() -> None:
    assert set(TUNABLE) <= set(ours())
    assert set(usual_space(Method.registry["gbme-p"])) == {"alpha", "local.lr"}
