"""A run as callbacks see it, without the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from fedtail.callbacks import Callback, RunInfo

SETTINGS = {
    "seed": 7,
    "rounds": 4,
    "augment": True,
    "method": {"name": "fedlc", "loss": {"name": "logit-calibration", "tau": 0.5}},
    "steps": [100, 200],
}


def info(folder: Path | None = None, done: int = 0, rounds: int = 4) -> RunInfo:
    """Return what a callback is told at the start."""
    return RunInfo(
        name="demo",
        settings=SETTINGS,
        rounds=rounds,
        done=done,
        folder=folder,
        classes=("cat", "dog"),
        class_counts=(30, 3),
    )


def record(at: int, **changes: Any) -> dict[str, Any]:
    """Return the record of a round, with accuracy a tenth of its number."""
    return {
        "round": at,
        "accuracy": at / 10,
        "balanced_accuracy": at / 20,
        "many": at / 10,
        "medium": None,
        "few": 0.0,
        "tail": 0.0,
        "worst_class": 0.0,
        "per_class": [at / 10, None],
        "loss": 1.0,
        "ece": 0.25,
        "bytes_up": 1024,
        "bytes_down": 2048,
        "seconds": 0.5,
        "clients": [0, 1],
        "dropped": [{"client": 2, "reason": "late"}],
        "method": {"gradient norm": 1.5 * at, "note": "text"},
        **changes,
    }


def play(callback: Callback, start: RunInfo, rounds: range, ended: bool) -> None:
    """Tell a callback of some rounds, to the end or up to a kill."""
    callback.on_start(start)
    for at in rounds:
        callback.on_round(record(at))
    if ended:
        callback.on_end(record(rounds[-1]), {"weight": torch.zeros(1)})
    callback.close()
