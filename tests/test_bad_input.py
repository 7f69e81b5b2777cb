"""Wrong input: one sentence on standard error, exit code 2, nothing written."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import fedtail, files, one_sentence, write_npz
from torch import nn

from fedtail import (
    Arrays,
    Experiment,
    FedAvg,
    FedtailError,
    LocalTraining,
    compare,
    doctor,
    run,
    tune,
)
from fedtail.errors import unknown_name
from fedtail.methods import Method


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDTAIL_DATA", str(tmp_path / "no-data"))
    return tmp_path


def refused(*words: str) -> str:
    """Return the sentence with which a run is refused, after checking that it left nothing."""
    said = one_sentence(fedtail("run", "--out", "out", "--rounds", "1", *words))
    assert not Path("out").exists()
    return said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--method", "fedavgg"], "method: unknown method 'fedavgg'; did you mean 'fedavg'?"),
        (["--data", "digit"], "data: unknown data source 'digit'; did you mean 'digits'?"),
        (["--partition", "dirichle"], "unknown partition 'dirichle'; did you mean 'dirichlet'?"),
        (["--model", "resnet9"], "model: unknown model 'resnet9'; did you mean 'resnet8'?"),
        (["--tail", "stepp"], "tail: unknown tail 'stepp'; did you mean 'step'?"),
        (["method.loss=cross_entrpy"], "method.loss: unknown loss 'cross_entrpy'; did you mean"),
        (["method.local.schedule=cosin"], "method.local.schedule: unknown schedule 'cosin'; did"),
        (["roundz=3"], "unknown key 'roundz'; did you mean 'rounds'?"),
        (
            ["method.locl.lr=1"],
            "unknown key 'method.locl.lr'; did you mean 'method.local.lr' or --lr?",
        ),
        (["method.local.lrr=1"], "method.local: unknown key 'lrr'; did you mean 'lr'?"),
        (["--model", "resnet8", "model.widht=4"], "model: unknown key 'widht'; did you mean"),
        (["--device", "cud"], "device: 'cud' is no device; did you mean 'cuda'? (give auto, cpu, "),
        (['track=["tensorbord"]'], "; did you mean 'tensorboard'?"),
        (["--rond", "3"], "no such option '--rond'; did you mean '--rounds'?"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(words: list[str], said: str) -> None:
    assert said in refused(*words)


def test_an_unknown_command_is_refused_with_the_nearest() -> None:
    assert one_sentence(fedtail("rnu")) == "no such command 'rnu'; did you mean 'run'?"
    assert "did you mean 'fedavg'?" in one_sentence(fedtail("methods", "fedavgg"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--imbalance", "0.5"], "'tail.imbalance' = 0.5 is refused: input should be greater than"),
        (["--imbalance", "nan"], "'tail.imbalance' = nan is refused: input should be a finite"),
        (["--alpha", "0"], "'partition.alpha' = 0.0 is refused: input should be greater than 0"),
        (["--alpha=-1"], "'partition.alpha' = -1.0 is refused"),
        (["--clients", "5000"], "5000 clients but only 1438 samples"),
        (["--clients", "4", "--per-round", "5"], "per_round = 5 is more than the 4 clients"),
        (["--per-round", "11"], "per_round = 11 is more than the 10 clients"),
        (["--min-clients", "4", "--per-round", "3"], "min_clients = 4 is more than the 3 clients"),
        (["--min-clients", "11"], "min_clients = 11 is more than the 10 clients of a round"),
        (["--rounds", "0"], "'rounds' = 0 is refused: input should be greater than or equal to 1"),
        (["--rounds", "-3"], "'rounds' = -3 is refused"),
        (["--rounds", "abc"], "invalid value for '--rounds': 'abc' is not a valid integer"),
        (["rounds=abc"], "'rounds' = 'abc' is refused: give a whole number"),
        (["rounds.x=3"], "'rounds.x' cannot be set: 'rounds' is 1, without fields"),
        (["--lr", "0"], "'method.local.lr' = 0.0 is refused: input should be greater than 0"),
        (["--lr", "abc"], "invalid value for '--lr': 'abc' is not a valid float"),
        (["method.local.lr=abc"], "'method.local.lr' = 'abc' is refused: give a number"),
        (["--batch-size", "0"], "'method.local.batch_size' = 0 is refused"),
        (["--workers", "-1"], "workers: '-1' is no number of workers: give auto, 0, 1, 2, ..."),
        (["workers=1.5"], "workers: 1.5 is no number of workers"),
        (["--seed", "-1"], "'seed' = -1 is refused"),
        (["method.local.nesterov=true"], "method.local: nesterov needs momentum above 0"),
        (["method=3"], "'method' = 3 is refused: give a name, or a table of fields"),
        (["model=3"], "model: a model is a registered name"),
        (["model.width=4"], "model: say which model these fields are of, for example"),
        (["track=tensorboard"], "'track' = 'tensorboard' is refused: give a list"),
        (["plugins=3"], "'plugins' = 3 is refused: give a list"),
        (["data.path=3"], "data: unknown key 'path' (there are none here)"),
        (["--data", "npz"], "'data.path' is required"),
        (["--data", "arrays"], "'arrays' is made in Python"),
        (["--partition", "natural"], "partition 'natural' needs data with natural clients"),
        (["--device", "cuda"], "device 'cuda' is not available here"),
        (["rounds"], "'rounds' is neither an experiment file nor section.field=value"),
        (["=3"], "'=3' is not of the form section.field=value"),
        (["a.toml", "b.toml"], "one experiment file at most, not a.toml and b.toml"),
        (["missing.toml"], "cannot read 'missing.toml': No such file or directory"),
    ],
)
def test_a_wrong_value_is_refused_by_name(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert said in refused(*words)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"y_train": np.arange(40) % 4 - 1}, "labels must not be negative, found -1"),
        ({"y_train": np.arange(40) / 3}, "labels must be whole numbers, got float64"),
        ({"y_train": np.array(["a"] * 40)}, "y_test holds numbers, but other labels are names"),
        ({"classes": np.array(["a", "b"])}, "label 3 is beyond the 2 classes (allowed: 0 to 1)"),
        ({"x_train": np.full((40, 5), np.nan)}, "inputs hold NaN or infinite values"),
        ({"y_train": np.arange(37) % 4}, "40 inputs but 37 labels"),
        ({"client_train": np.arange(3)}, "client_train"),
        ({"y_train": np.array([{}] * 40, dtype=object)}, "pickled objects are refused"),
    ],
)
def test_wrong_arrays_are_refused(here: Path, changes: dict[str, np.ndarray], said: str) -> None:
    path = write_npz(here / "mine.npz", **changes)
    message = refused("--data", path, "--clients", "3")
    assert said in message
    assert "mine.npz" in message


def test_a_file_that_is_no_npz_is_refused(here: Path) -> None:
    Path("mine.npz").write_text("hello")
    assert "mine.npz is not an npz file" in refused("--data", "mine.npz")
    whole = Path(write_npz(here / "whole.npz")).read_bytes()
    Path("mine.npz").write_bytes(whole[:700])
    assert "mine.npz is not an npz file" in refused("--data", "mine.npz")
    assert "there is no file gone.npz" in refused("--data", "gone.npz")


def test_a_cohort_larger_than_the_natural_clients_is_refused(here: Path) -> None:
    path = write_npz(here / "mine.npz")
    natural = ["--data", path, "--partition", "natural"]
    assert "per_round = 4 is more than the 3 clients" in refused(*natural, "--per-round", "4")
    assert "min_clients = 4 is more than the 3 clients" in refused(*natural, "--min-clients", "4")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rounds = = 3", "'it.toml' is not valid TOML: Invalid value (at line 1, column 10)"),
        ("rouns = 3", "unknown key 'rouns'; did you mean 'rounds'?"),
        ("[method.local]\nlrr = 1", "method.local: unknown key 'lrr'; did you mean 'lr'?"),
        ("data = [1, 2]", "'data' = [1, 2] is refused: give a name, or a table of fields"),
    ],
)
def test_a_wrong_file_is_refused(text: str, said: str) -> None:
    Path("it.toml").write_text(text)
    assert said in refused("it.toml")


def test_a_file_that_is_no_text_is_refused() -> None:
    Path("it.toml").write_bytes(b"\xff\xfe\x00")
    assert "'it.toml' is not valid TOML" in refused("it.toml")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("\n1 / 0", "cannot be imported: ZeroDivisionError: division by zero (line 2)"),
        ("def (", "cannot be imported: SyntaxError: invalid syntax"),
        ("import nowhere", "cannot be imported: ModuleNotFoundError: No module named 'nowhere'"),
    ],
)
def test_a_plug_in_that_cannot_be_imported_is_refused(code: str, said: str) -> None:
    Path("plug.py").write_text(code)
    assert f"plug-in 'plug.py' {said}" in refused("--plugin", "plug.py")


def test_a_plug_in_that_is_not_there_is_refused() -> None:
    assert refused("--plugin", "no.py") == "plug-in file 'no.py' does not exist"
    assert "plug-in 'nowhere' cannot be imported" in refused("--plugin", "nowhere")


def test_a_plug_in_cannot_take_a_name_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Method.registry, "_classes", dict(Method.registry._classes))
    Path("again.py").write_text(
        "from fedtail import FedAvg, Method\n"
        "Method.register('fedavg')(type('Again', (FedAvg,), {'__module__': __name__}))\n"
    )
    said = refused("--plugin", "again.py")
    assert said == "plug-in 'again.py': method 'fedavg' is registered twice"


# The out folder


def test_an_out_folder_that_is_taken_is_refused_and_left_alone(here: Path) -> None:
    data = write_npz(here / "mine.npz")
    short = ["--data", data, "--clients", "3", "--rounds", "1", "--out", "taken"]
    assert fedtail("run", *short).code == 0
    before = files(here / "taken")
    assert "'taken' already holds a run" in one_sentence(fedtail("run", *short))
    assert files(here / "taken") == before
    (here / "other").mkdir()
    (here / "other" / "note").touch()
    said = one_sentence(fedtail("run", "--out", "other"))
    assert said == "'other' is not an empty folder; choose another --out"
    assert files(here / "other") == {"note": b""}


def test_an_out_folder_below_a_file_is_refused(here: Path) -> None:
    (here / "file").touch()
    said = one_sentence(fedtail("run", "--out", "file/out"))
    assert said == "cannot make the folder 'file/out': Not a directory"
    said = one_sentence(fedtail("compare", "--method", "fedavg", "--out", "file"))
    assert said == "cannot make the folder 'file': File exists"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_out_folder_without_permission_is_refused(here: Path) -> None:
    (here / "closed").mkdir(mode=0o555)
    assert "Permission denied" in one_sentence(fedtail("run", "--out", "closed/out"))


def test_a_start_that_cannot_be_written_leaves_nothing(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.replace

    def full(path: Path, target: Path) -> Path:
        if "env.json" in path.name:
            raise OSError(28, "No space left on device", str(path))
        return rename(path, target)

    monkeypatch.setattr(Path, "replace", full)
    assert refused() == "cannot write 'out/env.json': No space left on device"


# The Python door


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"rounds": 0}, "'rounds' = 0 is refused"),
        ({"method": "fedavgg"}, "did you mean 'fedavg'?"),
        ({"roundz": 1}, "did you mean 'rounds'?"),
        ({"clients": 2, "per_round": 3}, "per_round = 3 is more than the 2 clients"),
        ({"model": 3}, "a model is a registered name"),
        ({"model": {"name": "resnet8", "width": 0}}, "'model.width' = 0 is refused"),
        ({"method": {"name": "fedprox", "local": {"lr": 0}}}, "'method.local.lr' = 0 is refused"),
        ({"method": {"local": {"schedule": {"name": "cosine", "floor": 2}}}}, "'method.local.sch"),
    ],
)
def test_python_says_the_same(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(FedtailError) as caught:
        Experiment(**fields)
    assert said in str(caught.value)
    with pytest.raises(FedtailError) as again:
        Experiment().but(**fields)
    assert str(again.value) == str(caught.value)


@pytest.mark.parametrize("given", [{"rounds": 1}, "experiment.toml", Experiment])
@pytest.mark.parametrize("call", [run, doctor, compare, partial(tune, out="out")])
def test_what_is_no_experiment_is_refused(call: Any, given: Any, here: Path) -> None:
    before = files(here)
    with pytest.raises(FedtailError, match=r"an Experiment is needed, not .*model_valid"):
        call(given)
    assert files(here) == before
    assert not Path("out").exists()


def test_a_value_in_python_is_named() -> None:
    with pytest.raises(FedtailError, match=r"^'lr' = 0 is refused: input should be greater than 0"):
        FedAvg(local=LocalTraining(lr=0))
    with pytest.raises(FedtailError, match=r"^'local.lr' = 0 is refused"):
        FedAvg(local={"lr": 0})


def test_a_model_with_the_wrong_number_of_classes_is_refused(here: Path) -> None:
    x, y = np.zeros((20, 3), np.float32), np.arange(20) % 2
    experiment = Experiment(data=Arrays(x, y), clients=2, model=nn.Linear(3, 7))
    with pytest.raises(FedtailError, match=r"an output of shape \(2, 7\) where \(2, 2\) is needed"):
        run(experiment, out=here / "out")
    assert not (here / "out").exists()


def test_arrays_of_objects_are_refused(here: Path) -> None:
    x, y = np.zeros((20, 3), np.float32), np.arange(20) % 2
    for data in (Arrays(x.astype(object), y), Arrays(x, y.astype(object))):
        with pytest.raises(FedtailError, match=r"object"):
            run(Experiment(data=data, clients=2), out=here / "out")
    assert not (here / "out").exists()


def test_a_long_value_is_cut_and_stays_in_one_line() -> None:
    with pytest.raises(FedtailError) as caught:
        Experiment.model_validate({"rounds": np.zeros((9, 9))})
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 150


def test_a_name_far_from_all_others_is_not_guessed() -> None:
    assert str(unknown_name("loss", "zzz", ["b", "a"])) == "unknown loss 'zzz' (known: a, b)"
    assert str(unknown_name("key", "zzz", [])) == "unknown key 'zzz' (there are none here)"
