"""MLflow's own client reads back what was logged to a local store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tracked import info, play

from fedtail.callbacks import MLflow
from fedtail.errors import FedtailError

mlflow = pytest.importorskip("mlflow")
pytest.importorskip("sqlalchemy")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of its database layer


def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


def runs(tmp_path: Path) -> list[Any]:
    client = mlflow.MlflowClient(tracking_uri=store(tmp_path))
    experiment = client.get_experiment_by_name("fedtail")
    return list(client.search_runs([experiment.experiment_id]))


def history(tmp_path: Path, run_id: str, name: str) -> list[tuple[int, float]]:
    client = mlflow.MlflowClient(tracking_uri=store(tmp_path))
    return sorted((m.step, m.value) for m in client.get_metric_history(run_id, name))


def test_metrics_settings_and_status_are_read_back(tmp_path: Path) -> None:
    play(MLflow(store(tmp_path)), info(tmp_path), range(1, 5), ended=True)

    (run,) = runs(tmp_path)
    assert run.info.run_name == "demo"
    assert run.info.status == "FINISHED"
    assert run.data.params["method.loss.tau"] == "0.5"
    assert run.data.params["steps"] == "[100, 200]"
    assert "medium" not in run.data.metrics
    expected = [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]
    assert history(tmp_path, run.info.run_id, "accuracy") == expected
    assert run.data.metrics["method/gradient norm"] == 6.0
    assert mlflow.active_run() is None


def test_a_resumed_run_continues_the_same_mlflow_run(tmp_path: Path) -> None:
    play(MLflow(store(tmp_path)), info(tmp_path), range(1, 3), ended=False)
    (first,) = runs(tmp_path)
    assert first.info.status == "KILLED"
    assert json.loads((tmp_path / "mlflow.json").read_text()) == {"id": first.info.run_id}

    play(MLflow(store(tmp_path)), info(tmp_path, done=2), range(3, 5), ended=True)

    (run,) = runs(tmp_path)
    assert run.info.run_id == first.info.run_id
    assert run.info.status == "FINISHED"
    assert [step for step, _ in history(tmp_path, run.info.run_id, "accuracy")] == [1, 2, 3, 4]


def test_a_store_that_cannot_be_opened_is_a_sentence() -> None:
    with pytest.raises(FedtailError, match="MLflow cannot open its store"):
        MLflow("gopher://nowhere").on_start(info(None))
