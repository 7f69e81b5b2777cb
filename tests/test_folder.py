"""Run folders: never overwritten, never mistaken, never stuck."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

from fedtail.errors import FedtailError
from fedtail.folder import RunFolder, environment, free_folder


def test_a_folder_with_a_run_is_not_overwritten(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.must_be_new()
    folder.begin("seed = 0\n", "{}", {"threads": 1}, {})
    with pytest.raises(FedtailError, match=r"already holds a run: go on with it .*--resume"):
        folder.must_be_new()


def test_a_folder_with_something_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(FedtailError, match="not an empty folder"):
        RunFolder(tmp_path).must_be_new()
    with pytest.raises(FedtailError, match="not an empty folder"):
        RunFolder(tmp_path / "thesis.tex").must_be_new()


@pytest.mark.parametrize(
    "left", [(), (".split.json.12.tmp",), ("split.json",), ("split.json", "env.json"), ("lock",)]
)
def test_a_start_that_was_killed_can_be_made_again(tmp_path: Path, left: tuple[str, ...]) -> None:
    # What a kill leaves before experiment.toml stands: no run to resume, so it must start anew.
    for name in left:
        (tmp_path / name).write_text("{")
    folder = RunFolder(tmp_path)
    with pytest.raises(FedtailError, match="not a run folder"):
        folder.must_be_a_run()
    folder.must_be_new()


def test_what_is_known_before_the_first_round(tmp_path: Path) -> None:
    # Prepare
    folder = RunFolder(tmp_path / "a" / "b")

    # Execute
    folder.begin("seed = 0\n", '{"format": 1}', {"threads": 3}, {"split": "a"})

    # Assert
    folder.must_be_a_run()
    assert folder.experiment.read_text().startswith("seed = 0\n")
    assert folder.settings() == {"seed": 0}
    assert json.loads((folder.path / "split.json").read_text()) == {"format": 1}
    facts = json.loads((folder.path / "env.json").read_text())
    assert facts["threads"] == 3
    assert {"fedtail", "python", "torch", "numpy", "platform", "command", "load"} <= facts.keys()
    assert not folder.finished


def test_the_description_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(
        "fedtail.folder.write_atomic", lambda path, content: written.append(path.name)
    )
    RunFolder(tmp_path).begin("", "", {}, {})
    assert written[-1] == "experiment.toml"


def test_a_finished_run_has_its_model(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.finish({"w": torch.tensor([1.0])})
    assert folder.finished
    assert safetensors.torch.load_file(folder.model)["w"].tolist() == [1.0]


def test_a_model_that_was_changed_is_refused(tmp_path: Path) -> None:
    # Prepare
    folder = RunFolder(tmp_path)
    folder.finish({"w": torch.tensor([1.0])})
    assert folder.shipped()["w"].tolist() == [1.0]
    digest = hashlib.sha256(folder.model.read_bytes()).hexdigest()
    stored = tmp_path / "model.safetensors.sha256"
    assert stored.read_text() == f"{digest}  model.safetensors\n"

    # Execute: another model, of the same size, in a file that is whole.
    folder.model.write_bytes(safetensors.torch.save({"w": torch.tensor([2.0])}))

    # Assert
    with pytest.raises(FedtailError, match=r"model\.safetensors' is damaged: its SHA-256 is not"):
        folder.shipped()


def test_a_model_without_a_digest_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = RunFolder(tmp_path)
    folder.finish({"w": torch.tensor([1.0])})
    (tmp_path / "model.safetensors.sha256").unlink()
    assert folder.shipped()["w"].tolist() == [1.0]
    (said,) = caplog.messages
    assert "model.safetensors' cannot be checked" in said


def test_a_free_folder_is_numbered_if_it_must_be(tmp_path: Path) -> None:
    assert free_folder(tmp_path, "run").path == tmp_path / "run"
    (tmp_path / "run").mkdir()
    (tmp_path / "run-2").mkdir()
    assert free_folder(tmp_path, "run").path == tmp_path / "run-3"


def test_the_environment_is_plain_data() -> None:
    assert json.loads(json.dumps(environment())) == environment()
