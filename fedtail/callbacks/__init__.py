"""Everything that watches a run: progress, metrics file and experiment trackers."""

from collections.abc import Callable

from fedtail.callbacks.base import Best, Callback, Record, RunInfo, Snapshot
from fedtail.callbacks.checkpoint import Checkpoint
from fedtail.callbacks.jsonl import JsonLines, read_records, rebuild
from fedtail.callbacks.mlflow import MLflow
from fedtail.callbacks.progress import Progress
from fedtail.callbacks.tensorboard import TensorBoard
from fedtail.callbacks.wandb import WandB

trackers: dict[str, Callable[[], Callback]] = {
    "mlflow": MLflow,
    "tensorboard": TensorBoard,
    "wandb": WandB,
}
"""Experiment trackers by the name that switches them on."""

__all__ = [
    "Best",
    "Callback",
    "Checkpoint",
    "JsonLines",
    "MLflow",
    "Progress",
    "Record",
    "RunInfo",
    "Snapshot",
    "TensorBoard",
    "WandB",
    "read_records",
    "rebuild",
    "trackers",
]
