"""What watches a run without being asked for, and the trackers that an experiment names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fedtail.callbacks.base import Callback
from fedtail.callbacks.checkpoint import Checkpoint
from fedtail.callbacks.jsonl import JsonLines
from fedtail.callbacks.mlflow import MLflow
from fedtail.callbacks.report import ReportFile
from fedtail.callbacks.tensorboard import TensorBoard
from fedtail.callbacks.wandb import WandB

if TYPE_CHECKING:  # both stand on callbacks
    from fedtail.experiment import Experiment
    from fedtail.folder import RunFolder

trackers: dict[str, Callable[[], Callback]] = {
    "mlflow": MLflow,
    "tensorboard": TensorBoard,
    "wandb": WandB,
}
"""Experiment trackers by the name that switches them on."""


def own_callbacks(experiment: Experiment, folder: RunFolder | None) -> list[Callback]:
    """Return what every run with a folder has, and the trackers that were asked for."""
    chosen: list[Callback] = [trackers[name]() for name in experiment.track]
    if folder is not None:
        chosen += [
            JsonLines(folder.metrics),
            Checkpoint(folder.checkpoint, experiment.checkpoint_every),
            ReportFile(folder.path),
        ]
    return chosen
