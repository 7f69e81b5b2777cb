"""Curves and settings in TensorBoard (the extra ``tensorboard``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fedtail.callbacks.base import Callback, Record, RunInfo
from fedtail.callbacks.tracking import LOGGED, dotted, require, scalars
from fedtail.errors import FedtailError


class TensorBoard(Callback):
    """Write event files: one scalar a number, the step is the round, the settings as hparams.

    A resumed run hides the steps it does again, so that no curve doubles back.

    Parameters
    ----------
    log_dir
        Where the event files go; ``tensorboard/`` in the run folder if not given.
    """

    def __init__(self, log_dir: Path | str | None = None) -> None:
        self._library = require("torch.utils.tensorboard", "TensorBoard", "tensorboard")
        self.log_dir = None if log_dir is None else Path(log_dir)
        self._writer: Any = None
        self._session_end: Any = None

    def on_start(self, info: RunInfo) -> None:
        """Open an event file and write the settings."""
        log_dir = self.log_dir or (info.folder and info.folder / "tensorboard")
        if log_dir is None:
            raise FedtailError("TensorBoard needs a run folder or a log_dir")
        self._writer = self._library.SummaryWriter(
            str(log_dir), purge_step=info.done + 1 if info.done else None
        )
        experiment, start, self._session_end = self._library.summary.hparams(
            dotted(info.settings), dict.fromkeys(LOGGED, 0.0)
        )
        self._writer.file_writer.add_summary(experiment)
        self._writer.file_writer.add_summary(start)
        self._writer.flush()

    def on_round(self, record: Record) -> None:
        """Write the round's numbers."""
        for name, value in scalars(record).items():
            self._writer.add_scalar(name, value, record["round"])

    def on_end(self, record: Record, model: Mapping[str, Tensor]) -> None:
        """Mark the settings' session as finished."""
        self._writer.file_writer.add_summary(self._session_end)

    def close(self) -> None:
        """Flush and close the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
