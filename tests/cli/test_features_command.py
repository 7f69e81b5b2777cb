"""`fedtail features`: a data set of features, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from typer.testing import CliRunner

from fedtail import Arrays, Experiment
from fedtail.cli import app
from fedtail.feature_file import write_features
from fedtail.models import build


def test_a_file_of_features_is_a_data_set_that_a_head_is_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--data", "digits", "--model", "mlp", "model.hidden=[12]", "--out", "features.npz"]
    made = CliRunner().invoke(app, ["features", *words])
    assert made.exit_code == 0, made.output
    assert "features.npz  12 features of 1438 training and 359 test samples" in made.output
    with np.load("features.npz", allow_pickle=False) as file:
        assert file["x_train"].shape == (1438, 12)
        assert file["x_train"].dtype == np.float32
        assert list(file["classes"]) == [str(c) for c in range(10)]
    run = ["run", "--data", "features.npz", "--model", "mlp", "model.hidden=[]", "--rounds", "1"]
    assert CliRunner().invoke(app, run).exit_code == 0
    again = CliRunner().invoke(app, ["features", *words])
    assert "'features.npz' is there already" in str(again.exception)


def test_inputs_are_normalised_as_in_a_run_and_clients_are_kept(tmp_path: Path) -> None:
    held = tiny.arrays()
    names = np.array([f"client {k}" for k in range(6)])[held["client_train"]]
    mine = tiny.plain_model()
    data = Arrays(**{**held, "client_train": names}, normalisation="standard")
    raw = write_features(Experiment(data=data, model=mine), tmp_path / "a.npz")
    x = torch.from_numpy(held["x_train"]) / 255
    mean, std = x.mean((0, 2, 3), keepdim=True), x.std((0, 2, 3), keepdim=True, correction=0)
    wanted = build(mine, (3, 8, 8), 4).features((x - mean) / std)
    np.testing.assert_allclose(raw.x_train, wanted.detach().numpy(), atol=1e-5)
    with np.load(tmp_path / "a.npz", allow_pickle=False) as file:
        assert list(file["clients"][file["client_train"]]) == list(names)


def test_what_is_refused_is_one_sentence(tmp_path: Path) -> None:
    out = str(tmp_path / "features.npy")
    refused = CliRunner().invoke(app, ["features", "--data", "digits", "--out", out])
    assert f"'{out}' is refused: features are kept as FILE.npz" in str(refused.exception)
    missing = CliRunner().invoke(app, ["features", "--data", "digits"])
    assert missing.exit_code == 2
    words = ["features", "--data", "digits", "--model", "resnet8", "model.weights=none.pt"]
    weights = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "b.npz")])
    assert "there is no file 'none.pt'" in str(weights.exception)
    assert list(tmp_path.iterdir()) == []
