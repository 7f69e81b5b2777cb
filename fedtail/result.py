"""What a run leaves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedtail.callbacks.progress import SHOWN
from fedtail.metrics.curves import shipped_record
from fedtail.predictor import Predictor
from fedtail.state import digest


@dataclass(frozen=True, repr=False)
class Result:
    """What a run leaves.

    Attributes
    ----------
    history
        One record a round, as in ``metrics.jsonl``.
    tensors
        The model that is tested and shipped, by the names of the user's own module.
    network
        That model, loaded: the plain network, which takes normalised inputs.
    model
        The same with all that belongs to it: it predicts from inputs as they were given.
    state
        The server's state after the last round.
    folder
        The run folder, if there is one.
    """

    history: list[dict[str, Any]]
    tensors: dict[str, Tensor]
    network: nn.Module
    model: Predictor
    state: Any
    folder: Path | None

    @property
    def best(self) -> dict[str, Any]:
        """The record of the round whose model is shipped: the best on validation, or the last."""
        return dict(shipped_record(self.history))

    @property
    def metrics(self) -> dict[str, Any]:
        """The scores of the model that is shipped: the record of its round."""
        return self.best

    @property
    def stopped(self) -> str:
        """Why the run ended before its last round, in a clause; empty if it did not."""
        return str(self.history[-1].get("stopped", ""))

    @property
    def digest(self) -> str:
        """SHA-256 of the model: equal runs have equal digests."""
        return digest(self.tensors)

    def __repr__(self) -> str:
        last = self.best if self.history else {}
        why = f", stopped: {self.stopped}" if self.history and self.stopped else ""
        scores = [f"{k} {v:.4f}" for k in SHOWN if (v := last.get(k)) is not None]
        network = f"{sum(map(Tensor.numel, self.tensors.values())):,} numbers"
        return "\n".join(
            [
                f"Result of {len(self.history)} rounds{why}",
                f"  scores  {', '.join(scores)}",
                f"  model   {type(self.network).__name__}, {network}, digest {self.digest[:16]}",
                f"  folder  {self.folder or 'none'}",
            ]
        )
