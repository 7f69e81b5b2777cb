"""Files are written beside and renamed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedtail.errors import FedtailError
from fedtail.files import make_folder, write_atomic


def test_text_and_bytes_are_written_as_they_are(tmp_path: Path) -> None:
    write_atomic(tmp_path / "t", "é\n")
    write_atomic(tmp_path / "b", b"\x00\xff")
    assert (tmp_path / "t").read_bytes() == b"\xc3\xa9\n"
    assert (tmp_path / "b").read_bytes() == b"\x00\xff"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b", "t"]


def test_a_kill_before_the_rename_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Prepare: the process ends between writing and renaming.
    write_atomic(tmp_path / "f", "old")

    def killed(self: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)

    # Execute
    with pytest.raises(KeyboardInterrupt):
        write_atomic(tmp_path / "f", "new")

    # Assert
    assert (tmp_path / "f").read_text() == "old"


def test_a_full_disk_is_one_sentence_and_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Prepare
    write_atomic(tmp_path / "f", "old")

    def full(self: Path, data: bytes) -> int:
        self.touch()
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Path, "write_bytes", full)

    # Execute
    with pytest.raises(FedtailError, match=r"cannot write '.*f': No space left on device"):
        write_atomic(tmp_path / "f", "new")

    # Assert
    assert (tmp_path / "f").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FedtailError, match="cannot make the folder"):
        make_folder(tmp_path / "file" / "inside")


def test_a_folder_may_exist_already(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
