"""Inputs as clients have them: the nodes report sums, and are told what to normalise with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, RecordDict
from local_federation import federation
from local_grid import LocalGrid
from torch import Tensor, nn

from fedtail import Arrays, Experiment, FedAvg, LocalTraining, Natural, load, run
from fedtail.engines.flower import client_app, serve

CLIENTS, CLASSES = 3, 3
RNG = np.random.default_rng(0)
X = (RNG.normal(size=(45, 5)) * [1, 100, 1e4, 1, 1] + [0, 7, 1e5, 0, 0]).astype(np.float32)
WORDS = RNG.integers(0, 20, (45, 6))
Y = np.arange(45) % CLASSES
OWNER = np.arange(45) % CLIENTS
METHOD: FedAvg[Any] = FedAvg(local=LocalTraining(lr=0.1, batch_size=5))


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def reader() -> nn.Module:
    return nn.Sequential(nn.EmbeddingBag(20, 4), nn.Linear(4, CLASSES))


def experiment(x: np.ndarray, model: Any) -> Experiment:
    data = Arrays(x, Y, x[:9], Y[:9], client_train=OWNER)
    # Nodes train one client at a time, and the bits are compared.
    alone = {"together": 0, "device": "cpu"}
    return Experiment(data=data, model=model, method=METHOD, partition=Natural(), rounds=2, **alone)


def served(x: np.ndarray, model: Any, out: Path, **fields: Any) -> Any:
    def local(context: Context) -> tuple[Tensor, Tensor]:
        mine = int(context.node_config["partition-id"]) == OWNER
        return torch.from_numpy(x[mine]), torch.from_numpy(Y[mine])

    state = {"state-dir": str(out) + "-state"}
    grid = LocalGrid(client_app(model, local, device="cpu"), CLIENTS, **state)
    config: dict[str, Any] = {"out": str(out), "clients": CLIENTS, "rounds": 2}
    return serve(
        grid,
        Context(1, 0, {}, RecordDict(), config),
        method=METHOD,
        model=model,
        test=(x[:9], Y[:9]),
        classes=["0", "1", "2"],
        class_counts=(15, 15, 15),
        **fields,
    )


def test_nodes_of_an_experiment_are_told_what_an_embedded_run_tells() -> None:
    expected = run(experiment(X, network))
    result = federation(experiment(X, network), nodes=2).run()
    assert result.digest == expected.digest
    assert result.model.file == expected.model.file
    assert result.history[0]["traffic"] == expected.history[0]["traffic"]


def test_an_app_with_data_of_its_own_reports_sums_too(tmp_path: Path) -> None:
    expected = run(experiment(X, network))
    result = served(X, network, tmp_path / "run", normalisation="standard")
    assert result.digest == expected.digest
    assert result.model.file.mean == expected.model.file.mean
    assert result.metrics["accuracy"] == expected.metrics["accuracy"]
    loaded = load(tmp_path / "run", network=network)
    assert loaded.score(X[:9], Y[:9]) == result.metrics["accuracy"]


def test_whole_numbers_stay_whole(tmp_path: Path) -> None:
    expected = run(experiment(WORDS, reader))
    result = served(WORDS, reader, tmp_path / "run")
    assert result.digest == expected.digest
    assert result.model.file.kind == expected.model.file.kind == "tokens"
