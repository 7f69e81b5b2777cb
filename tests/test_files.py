"""Files are written beside and renamed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fedtail.errors import FedtailError
from fedtail.files import append_line, make_folder, write_atomic


def failing(number: int) -> Callable[..., int]:
    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    return fail


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

    monkeypatch.setattr(os, "write", failing(errno.ENOSPC))

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


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_that_cannot_sync_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "fsync", failing(number))
    make_folder(tmp_path / "a" / "b")
    write_atomic(tmp_path / "a" / "b" / "f", "new")
    append_line(tmp_path / "a" / "b" / "f", "line", sync=True)
    assert (tmp_path / "a" / "b" / "f").read_text() == "newline\n"


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_sync_that_fails_is_one_sentence_and_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    write_atomic(tmp_path / "f", "old")
    monkeypatch.setattr(os, "fsync", failing(number))
    with pytest.raises(FedtailError, match=rf"cannot write '.*f': {os.strerror(number)}"):
        write_atomic(tmp_path / "f", "new")
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_text() == "old"


def test_lines_are_added(tmp_path: Path) -> None:
    append_line(tmp_path / "f", "é")
    append_line(tmp_path / "f", "b")
    assert (tmp_path / "f").read_bytes() == b"\xc3\xa9\nb\n"
