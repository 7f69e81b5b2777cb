"""The metrics file: appended, cut back on resume, never unreadable."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from tracked import info, play, record

from fedtail.callbacks import JsonLines, read_records
from fedtail.errors import FedtailError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "metrics.jsonl"


def rounds(path: Path) -> list[int]:
    return [record["round"] for record in read_records(path)]


def test_one_object_a_round_as_it_was_given(path: Path) -> None:
    play(JsonLines(path), info(), range(1, 4), ended=True)

    assert read_records(path) == [record(1), record(2), record(3)]
    assert path.read_bytes().count(b"\n") == 3


def test_a_round_is_in_the_file_before_the_next_one(path: Path) -> None:
    callback = JsonLines(path)
    callback.on_start(info())
    callback.on_round(record(1))

    assert rounds(path) == [1]
    callback.close()


def test_what_json_has_no_word_for_is_null(path: Path) -> None:
    callback = JsonLines(path)
    callback.on_start(info())
    callback.on_round(
        record(
            1,
            loss=math.nan,
            per_class=[math.inf, 0.5],
            method={"a": -math.inf, "b": np.float32(0.5), "c": torch.tensor(2), "d": np.nan},
        )
    )
    callback.close()

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    found = json.loads(path.read_text(), parse_constant=refuse)
    assert found["loss"] is None
    assert found["per_class"] == [None, 0.5]
    assert found["method"] == {"a": None, "b": 0.5, "c": 2, "d": None}


def test_resume_keeps_the_rounds_done_as_they_were_written(path: Path) -> None:
    play(JsonLines(path), info(), range(1, 4), ended=False)
    before = path.read_bytes().splitlines()

    play(JsonLines(path), info(done=2), range(3, 5), ended=True)

    assert rounds(path) == [1, 2, 3, 4]
    assert path.read_bytes().splitlines()[:2] == before[:2]
    assert [file.name for file in path.parent.iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize("torn", [b'{"round": 3, "accur', b'{"round": 3, "note": "\xc3', b"3"])
def test_a_torn_last_line_is_dropped(path: Path, torn: bytes) -> None:
    play(JsonLines(path), info(), range(1, 3), ended=False)
    with path.open("ab") as file:
        file.write(torn)

    assert rounds(path) == [1, 2]
    play(JsonLines(path), info(done=2), range(3, 5), ended=True)
    assert rounds(path) == [1, 2, 3, 4]


def test_a_whole_last_line_without_a_newline_is_kept(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{"round": 1}\n{"round": 2}')

    play(JsonLines(path), info(done=2), range(3, 4), ended=False)

    assert rounds(path) == [1, 2, 3]


def test_broken_lines_in_the_middle_are_left_out_and_named(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir()
    path.write_text('{"round": 1}\n{"rou\n{"round": "2"}\n{"round": 3}\n')

    assert rounds(path) == [1, 3]
    assert caplog.messages == [
        f"'{path}': what is not the record of a round is left out (line 2, 3)"
    ]
    play(JsonLines(path), info(done=3), range(4, 5), ended=True)
    assert path.read_text().splitlines()[:2] == ['{"round": 1}', '{"round": 3}']


def test_a_run_that_starts_anew_empties_the_file(path: Path) -> None:
    play(JsonLines(path), info(), range(1, 4), ended=False)
    play(JsonLines(path), info(), range(1, 2), ended=False)

    assert rounds(path) == [1]


def test_reading_up_to_a_round_and_reading_nothing(path: Path) -> None:
    assert read_records(path) == []
    play(JsonLines(path), info(), range(1, 4), ended=False)

    assert [r["round"] for r in read_records(path, until=2)] == [1, 2]


def test_closing_twice_and_unopened_is_harmless(path: Path) -> None:
    callback = JsonLines(path)
    callback.close()
    play(callback, info(), range(1, 2), ended=False)
    callback.close()

    with pytest.raises(FedtailError, match="before on_start"):
        callback.on_round(record(2))
