"""Runs in MLflow (the extra ``mlflow``)."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fedtail.callbacks.base import Callback, Record, RunInfo
from fedtail.callbacks.tracking import dotted, recall, remember, require, scalars
from fedtail.errors import FedtailError

_PARAMS_PER_BATCH = 100
_PARAM_LENGTH = 6000
_REFUSED = re.compile(r"[^\w\-. /:]", re.ASCII)


class MLflow(Callback):
    """Log each round as metrics (the step is the round) and the settings as parameters.

    It speaks through a client of its own and leaves MLflow's global active run alone. A resumed
    run continues the MLflow run whose id is kept in ``mlflow.json`` of the run folder.

    Parameters
    ----------
    tracking_uri
        The store; MLflow's own default (``MLFLOW_TRACKING_URI``) if not given.
    experiment
        The MLflow experiment that groups the runs.
    """

    def __init__(self, tracking_uri: str | None = None, experiment: str = "fedtail") -> None:
        self._mlflow = require("mlflow", "MLflow", "mlflow")
        self.tracking_uri = tracking_uri
        self.experiment = experiment
        self._client: Any = None
        self._run_id = ""
        self._status = "KILLED"

    def on_start(self, info: RunInfo) -> None:
        """Create the MLflow run, or open the one of the resumed run."""
        self._status = "KILLED"
        client = self._connect()
        known = recall(info, "mlflow")
        if known is not None:
            client.update_run(known, status="RUNNING")
            self._run_id = known
        else:
            self._run_id = self._create(client, info)
            remember(info, "mlflow", self._run_id)
        self._client = client

    def on_round(self, record: Record) -> None:
        """Log the round's numbers in one request."""
        now = int(time.time() * 1000)
        metrics = [
            self._mlflow.entities.Metric(_allowed(name), value, now, record["round"])
            for name, value in scalars(record).items()
        ]
        self._client.log_batch(self._run_id, metrics=metrics)

    def on_end(self, record: Record, model: Mapping[str, Tensor]) -> None:
        """Note that the run came to its end."""
        self._status = "FINISHED"

    def close(self) -> None:
        """End the MLflow run: finished if the last round was reached, else killed."""
        if self._client is not None:
            self._client.set_terminated(self._run_id, status=self._status)
            self._client = None

    def _connect(self) -> Any:
        try:
            return self._mlflow.MlflowClient(tracking_uri=self.tracking_uri)
        except self._mlflow.exceptions.MlflowException as error:
            raise FedtailError(f"MLflow cannot open its store: {error}") from error

    def _create(self, client: Any, info: RunInfo) -> str:
        found = client.get_experiment_by_name(self.experiment)
        where = found.experiment_id if found else client.create_experiment(self.experiment)
        run_id = str(client.create_run(where, run_name=info.name).info.run_id)
        params = [
            self._mlflow.entities.Param(_allowed(name), str(value)[:_PARAM_LENGTH])
            for name, value in dotted(info.settings).items()
        ]
        for first in range(0, len(params), _PARAMS_PER_BATCH):
            client.log_batch(run_id, params=params[first : first + _PARAMS_PER_BATCH])
        return run_id


def _allowed(name: str) -> str:
    """Return the name in the characters that every MLflow store takes."""
    return _REFUSED.sub("_", name)
