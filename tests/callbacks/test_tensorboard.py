"""TensorBoard's own reader reads back what was written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tracked import info, play

from fedtail.callbacks import TensorBoard
from fedtail.errors import FedtailError

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def read(folder: Path) -> Any:
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    return events


def test_scalars_and_settings_are_read_back(tmp_path: Path) -> None:
    play(TensorBoard(), info(tmp_path), range(1, 5), ended=True)

    events = read(tmp_path / "tensorboard")
    found = [(e.step, round(e.value, 6)) for e in events.Scalars("accuracy")]
    assert found == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]
    assert [e.value for e in events.Scalars("method/gradient norm")] == [1.5, 3.0, 4.5, 6.0]
    assert "medium" not in events.Tags()["scalars"]
    content = events.PluginTagToContent("hparams")
    assert b"method.loss.tau" in content["_hparams_/session_start_info"]
    assert "_hparams_/session_end_info" in content


def test_a_resumed_run_hides_the_rounds_it_does_again(tmp_path: Path) -> None:
    play(TensorBoard(), info(tmp_path), range(1, 4), ended=False)
    play(TensorBoard(), info(tmp_path, done=2), range(3, 5), ended=True)

    events = read(tmp_path / "tensorboard")
    assert [e.step for e in events.Scalars("accuracy")] == [1, 2, 3, 4]


def test_a_folder_of_its_own_and_none(tmp_path: Path) -> None:
    play(TensorBoard(tmp_path / "logs"), info(None), range(1, 2), ended=True)

    assert [e.step for e in read(tmp_path / "logs").Scalars("accuracy")] == [1]
    with pytest.raises(FedtailError, match="needs a run folder or a log_dir"):
        TensorBoard().on_start(info(None))
