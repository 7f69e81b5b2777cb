"""Runs in Weights & Biases (the extra ``wandb``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor

from fedtail.callbacks.base import Callback, Record, RunInfo
from fedtail.callbacks.tracking import dotted, recall, remember, require, scalars


class WandB(Callback):
    """Log each round (the step is the round), with the settings as the run's config.

    A resumed run continues the W&B run whose id is kept in ``wandb.json`` of the run folder.

    Parameters
    ----------
    project
        The W&B project.
    mode
        W&B's own default (``WANDB_MODE``, else online) if not given.
    """

    def __init__(
        self,
        project: str = "fedtail",
        mode: Literal["online", "offline", "disabled"] | None = None,
    ) -> None:
        self._wandb = require("wandb", "Weights & Biases", "wandb")
        self.project = project
        self.mode = mode
        self._run: Any = None
        self._exit_code = 1

    def on_start(self, info: RunInfo) -> None:
        """Create the W&B run, or continue the one of the resumed run."""
        self._exit_code = 1
        known = recall(info, "wandb")
        self._run = self._wandb.init(
            project=self.project,
            name=info.name,
            config=dotted(info.settings),
            dir=None if info.folder is None else str(info.folder),
            id=known,
            resume=None if known is None else "allow",
            mode=self.mode,
        )
        remember(info, "wandb", self._run.id)

    def on_round(self, record: Record) -> None:
        """Log the round's numbers."""
        self._run.log(scalars(record), step=record["round"])

    def on_end(self, record: Record, model: Mapping[str, Tensor]) -> None:
        """Note that the run came to its end."""
        self._exit_code = 0

    def close(self) -> None:
        """Finish the W&B run: as a success if the last round was reached."""
        if self._run is not None:
            self._run.finish(exit_code=self._exit_code)
            self._run = None
