"""A run folder that cannot be resumed is refused in one sentence and left as it is."""

from __future__ import annotations

import json
import logging
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
from command_line import fedtail, files, one_sentence, write_npz

from fedtail import Arrays, Experiment, run


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run folder with two rounds of three done."""
    folder = tmp_path_factory.mktemp("stopped")
    data = write_npz(folder / "mine.npz")
    out = str(folder / "run")
    assert fedtail("run", "--data", data, "--clients", "3", "--rounds", "2", "--out", out).code == 0
    description = folder / "run" / "experiment.toml"
    description.write_text(description.read_text().replace("rounds = 2", "rounds = 3"))
    (folder / "run" / "model.safetensors").unlink()
    return folder / "run"


@pytest.fixture
def broken(stopped: Path, tmp_path: Path) -> Path:
    """Return a copy of it, to be broken."""
    return Path(shutil.copytree(stopped, tmp_path / "run"))


def refused_resume(folder: Path) -> str:
    before = files(folder)
    said = one_sentence(fedtail("run", "--resume", str(folder)))
    assert files(folder) == before
    return said


def test_the_folder_resumes_when_it_is_whole(broken: Path) -> None:
    assert fedtail("run", "--resume", str(broken)).code == 0


def test_what_is_mended_is_said_once(broken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for logger in (logging.root, logging.getLogger("fedtail")):  # pytest has handlers there
        monkeypatch.setattr(logger, "handlers", [])
    (broken / "checkpoint" / "manifest-000002.json").write_text("{")
    (broken / "metrics.jsonl").write_text("?\n" * 12)
    done = fedtail("run", "--resume", str(broken))
    assert done.code == 0
    numbers = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ..."
    odd = (
        f"'{broken}/metrics.jsonl': what is not the record of a round is left out (line {numbers})"
    )
    damaged = f"'{broken}/checkpoint/manifest-000002.json' is truncated or not JSON"
    assert done.out.startswith(f"warning: the checkpoint {damaged}; the run goes on from")
    assert (done.out + done.err).count(damaged) == 1
    assert (done.out + done.err).count(f"warning: {odd}") == (done.out + done.err).count(odd) == 1
    # Where no run is shown, it looks the same.
    (broken / "metrics.jsonl").write_text((broken / "metrics.jsonl").read_text() + "?\n")
    shown = fedtail("run", "--resume", str(broken))
    line = len((broken / "metrics.jsonl").read_text().splitlines())
    assert shown.err == f"warning: {odd.partition(' (')[0]} (line {line})\n"


def test_a_description_that_was_edited_is_no_description_of_the_run(broken: Path) -> None:
    path = broken / "experiment.toml"
    begun = path.read_text()
    for old, new in (
        ('normalisation = "standard"', 'normalisation = "none"'),
        ("lr = 0.05", "lr = 0.5"),
    ):
        assert old in begun
        path.write_text(begun.replace(old, new))
        said = "experiment.toml' was changed since the run began: put it back as it was, or begin a"
        assert said in refused_resume(broken)
    # What may change, and where the data are, may be edited.
    free = begun.replace('on_client_error = "stop"', 'on_client_error = "drop"')
    assert free != begun
    moved = broken.with_name("moved.npz")
    shutil.copy(str(tomllib.loads(begun)["data"]["path"]), moved)
    path.write_text(free.replace(tomllib.loads(begun)["data"]["path"], str(moved)))
    assert fedtail("run", "--resume", str(broken)).code == 0


def test_what_is_not_a_run_is_not_resumed(broken: Path) -> None:
    assert "is not a run folder: it has no experiment.toml" in refused_resume(broken / "nowhere")
    (broken / "experiment.toml").unlink()
    assert "is not a run folder: it has no experiment.toml" in refused_resume(broken)


def test_a_broken_description_is_not_resumed(broken: Path) -> None:
    (broken / "experiment.toml").write_text("rounds =")
    assert "is not valid TOML" in refused_resume(broken)


def test_a_checkpoint_of_another_format_is_not_resumed(broken: Path) -> None:
    manifest = broken / "checkpoint" / "manifest-000002.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 99}))
    said = refused_resume(broken)
    assert "in format 99; fedtail" in said
    assert "reads format 3" in said


@pytest.mark.parametrize("text", ["", "[]", '{"format": 2', "null"])
def test_truncated_manifests_are_not_resumed(broken: Path, text: str) -> None:
    for manifest in (broken / "checkpoint").glob("manifest-*"):
        manifest.write_text(text)
    assert "manifest-000002.json' is truncated or not JSON" in refused_resume(broken)


@pytest.mark.parametrize("change", ["truncated", "edited", "removed"])
def test_changed_checkpoints_are_not_resumed(broken: Path, change: str) -> None:
    for state in (broken / "checkpoint").glob("server-*.safetensors"):
        data = state.read_bytes()
        if change == "removed":
            state.unlink()
        else:
            state.write_bytes(data[:-9] if change == "truncated" else data[:-1] + b"\x01")
    assert "is missing, truncated or changed" in refused_resume(broken)


def test_other_data_are_not_resumed(broken: Path, stopped: Path) -> None:
    data = stopped.parent / "mine.npz"
    before = data.read_bytes()
    write_npz(data, x_test=np.zeros((8, 5), np.float32))
    try:
        assert "holds a run with another test set" in refused_resume(broken)
    finally:
        data.write_bytes(before)


def test_a_resumed_run_takes_nothing_else(broken: Path) -> None:
    before = files(broken)
    for word in ("seed=40", "method.local.lr=1.0"):
        said = one_sentence(fedtail("run", "--resume", str(broken), word))
        assert "--resume takes the experiment from its folder: give nothing else but" in said
        assert files(broken) == before


def test_a_run_on_arrays_is_resumed_in_python(tmp_path: Path) -> None:
    x, y = np.zeros((20, 3), np.float32), np.arange(20) % 2
    run(Experiment(data=Arrays(x, y), clients=2, rounds=1), out=tmp_path / "py")
    (tmp_path / "py" / "model.safetensors").unlink()
    assert "this run's data was made in Python; resume it there" in refused_resume(tmp_path / "py")
