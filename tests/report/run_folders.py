"""Run folders written by hand, so that the numbers of a report can be worked out on paper."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

SPLIT = {
    "digest": "d0",
    "statistics": {"clients": 2, "samples": 17, "size_min": 5, "size_max": 12},
    "class_counts": [2, 10, 5],
    "counts": [[2, 6, 4], [0, 4, 1]],
}


def record(number: int, accuracy: float | None, **more: Any) -> dict[str, Any]:
    """Return a round of 100 bytes up, 50 down and two seconds."""
    base = {"round": number, "accuracy": accuracy, "bytes_up": 100, "bytes_down": 50, "seconds": 2}
    return {**base, **more}


def write_run(
    folder: Path,
    records: Sequence[Mapping[str, Any]],
    *,
    method: Mapping[str, Any] | None = None,
    seed: int = 0,
    finished: bool = True,
    split: Mapping[str, Any] | None = SPLIT,
    confusion: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Path:
    """Write what a run leaves."""
    folder.mkdir(parents=True)
    experiment = {
        "rounds": 3,
        "seed": seed,
        "method": {"name": "fedavg", **(method or {})},
        "groups": {"name": "thresholds", "many": 8, "few": 3},
        **settings,
    }
    (folder / "experiment.toml").write_text(tomli_w.dumps(experiment))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    environment = {"python": "3.11.7", "command": ["fedtail", "run", "--seed", str(seed)]}
    (folder / "env.json").write_text(json.dumps(environment))
    if split is not None:
        (folder / "split.json").write_text(json.dumps(split))
    if confusion is not None:
        (folder / "confusion.json").write_text(json.dumps(confusion))
    if finished:
        (folder / "model.safetensors").write_bytes(b"")
    return folder
