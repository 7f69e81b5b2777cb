"""Weights & Biases offline: the file it would upload is read back."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tracked import info, play

from fedtail.callbacks import WandB

pytest.importorskip("wandb")
messages = pytest.importorskip("wandb.proto.wandb_internal_pb2")
BLOCK = 32768
WHOLE, LAST = 1, 4


def records(path: Path) -> Iterator[Any]:
    """Yield the records of a transaction log (LevelDB's log format behind a 7-byte header)."""
    data, at, parts = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:  # too little left of a block for a header
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (WHOLE, LAST):
            yield messages.Record.FromString(parts)
            parts = b""


def log_of(folder: Path, which: int) -> list[Any]:
    return list(records(sorted((folder / "wandb").glob("offline-run-*/*.wandb"))[which]))


def history(log: list[Any]) -> list[dict[str, float]]:
    lines = [record.history for record in log if record.WhichOneof("record_type") == "history"]
    return [
        {(i.key or "/".join(i.nested_key)): json.loads(i.value_json) for i in line.item}
        for line in lines
    ]


def run_id(log: list[Any]) -> str:
    return str(next(r.run.run_id for r in log if r.WhichOneof("record_type") == "run"))


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")


def test_rounds_settings_and_the_resumed_run(tmp_path: Path) -> None:
    play(WandB(mode="offline"), info(tmp_path), range(1, 3), ended=False)
    play(WandB(mode="offline"), info(tmp_path, done=2), range(3, 5), ended=True)

    first, second = log_of(tmp_path, 0), log_of(tmp_path, 1)
    assert [(line["_step"], line["accuracy"]) for line in history(first)] == [(1, 0.1), (2, 0.2)]
    assert [(line["_step"], line["accuracy"]) for line in history(second)] == [(3, 0.3), (4, 0.4)]
    assert history(second)[-1]["method/gradient norm"] == 6.0
    assert "medium" not in history(second)[-1]
    config = next(r.run.config.update for r in first if r.WhichOneof("record_type") == "run")
    assert {u.key: u.value_json for u in config}["method.loss.tau"] == "0.5"
    kept = json.loads((tmp_path / "wandb.json").read_text())["id"]
    assert run_id(first) == run_id(second) == kept
    exits = [r.exit.exit_code for r in first + second if r.WhichOneof("record_type") == "exit"]
    assert exits == [1, 0]
