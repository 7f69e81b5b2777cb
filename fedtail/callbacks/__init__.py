"""Everything that watches a run: progress, metrics file, report and experiment trackers."""

from fedtail.callbacks.base import Best, Callback, Record, RunInfo, Snapshot
from fedtail.callbacks.checkpoint import Checkpoint
from fedtail.callbacks.jsonl import JsonLines, read_records, rebuild
from fedtail.callbacks.mlflow import MLflow
from fedtail.callbacks.own import own_callbacks, trackers
from fedtail.callbacks.progress import Progress
from fedtail.callbacks.report import ReportFile
from fedtail.callbacks.tensorboard import TensorBoard
from fedtail.callbacks.wandb import WandB

__all__ = [
    "Best",
    "Callback",
    "Checkpoint",
    "JsonLines",
    "MLflow",
    "Progress",
    "Record",
    "ReportFile",
    "RunInfo",
    "Snapshot",
    "TensorBoard",
    "WandB",
    "own_callbacks",
    "read_records",
    "rebuild",
    "trackers",
]
