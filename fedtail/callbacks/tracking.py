"""What the experiment trackers share: what they log, how they resume, how they are missed."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedtail.callbacks.base import Record, RunInfo
from fedtail.callbacks.jsonl import json_ready
from fedtail.errors import missing_extra
from fedtail.files import make_folder, write_atomic
from fedtail.metrics.scores import SCORES

LOGGED = (*SCORES, "bytes_up", "bytes_down", "seconds")
"""The keys of a record that trackers log; a method's own numbers come under ``method/``."""

SPREAD = ("least", "first_quartile", "median", "third_quartile", "greatest")
"""The five numbers of a box: of clients' own models, or of one model client by client."""


def require(module: str, title: str, extra: str) -> Any:
    """Import an optional library, or say which extra brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise missing_extra("tracking", title, extra) from error


def scalars(record: Record) -> dict[str, float]:
    """Return the finite numbers of one round by the name a tracker shows."""
    named = {key: record.get(key) for key in LOGGED}
    named |= {f"method/{key}": value for key, value in (record.get("method") or {}).items()}
    named["privacy/epsilon"] = (record.get("privacy") or {}).get("epsilon")
    named |= {f"validation/{key}": v for key, v in (record.get("validation") or {}).items()}
    personal = record.get("personal") or {}
    named |= {f"personal/{key}_mean": v for key, v in personal.get("mean", {}).items()}
    spreads = {f"personal/{key}": spread for key, spread in personal.items()}
    spreads["clients_test/accuracy"] = (record.get("clients_test") or {}).get("spread")
    for key, spread in spreads.items():
        if isinstance(spread, list):
            named |= {f"{key}_{at}": v for at, v in zip(SPREAD, spread, strict=True)}
    ready = json_ready(named)
    return {key: float(ready[key]) for key in ready if isinstance(ready[key], int | float)}


def dotted(settings: Mapping[str, Any]) -> dict[str, str | bool | int | float]:
    """Return nested settings under dotted names (``method.loss.tau``); lists become JSON text."""
    return dict(_flat(settings, ""))


def _flat(
    settings: Mapping[str, Any], prefix: str
) -> Iterator[tuple[str, str | bool | int | float]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, str | bool | int | float):
            yield f"{prefix}{key}", value
        else:
            yield f"{prefix}{key}", json.dumps(value, default=str)


def recall(info: RunInfo, tracker: str) -> str | None:
    """Return the id under which a resumed run is known to a tracker."""
    if info.folder is None or not info.done:
        return None
    path = _id_file(info.folder, tracker)
    return str(json.loads(path.read_text(encoding="utf-8"))["id"]) if path.exists() else None


def remember(info: RunInfo, tracker: str, run_id: str) -> None:
    """Keep the tracker's id in the run folder, so that a resumed run continues there."""
    if info.folder is not None:
        make_folder(info.folder)
        write_atomic(_id_file(info.folder, tracker), json.dumps({"id": run_id}) + "\n")


def _id_file(folder: Path, tracker: str) -> Path:
    return folder / f"{tracker}.json"
