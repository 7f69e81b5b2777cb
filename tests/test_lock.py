"""One process at a time writes to a run folder, and a dead one holds nothing."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from fedtail import FedtailError, lock
from fedtail.lock import locked


def hold(folder: str, pipe: Connection) -> None:
    with locked(Path(folder)):
        pipe.send(os.getpid())
        pipe.recv()


def test_another_process_is_named_and_its_death_lets_go(tmp_path: Path) -> None:
    # Prepare
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    process = context.Process(target=hold, args=(str(tmp_path), theirs))
    process.start()
    pid = ours.recv()

    # Execute and assert: refused while it lives,
    with pytest.raises(FedtailError) as refused, locked(tmp_path):
        pass
    holder = f"process {pid} on {socket.gethostname()}"
    assert str(refused.value) == f"'{tmp_path}' is in use by {holder}: wait for it, or end it"

    # and not any more when it was killed, although its file is there.
    process.kill()
    process.join()
    assert (tmp_path / "lock").exists()
    with locked(tmp_path):
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()
    assert not (tmp_path / "lock").exists()


def test_a_folder_that_stays_empty_is_removed(tmp_path: Path) -> None:
    with locked(tmp_path / "new"):
        assert (tmp_path / "new" / "lock").exists()
    assert not (tmp_path / "new").exists()
    with locked(tmp_path / "new"):
        (tmp_path / "new" / "file").touch()
    assert (tmp_path / "new").exists()


DEAD = 2**22 + 1  # above the largest number that Linux gives


@pytest.mark.parametrize(
    ("content", "free"),
    [
        ("", True),
        ('{"pid": 1', True),
        (json.dumps({"pid": DEAD, "host": socket.gethostname()}), True),
        (json.dumps({"pid": os.getppid(), "host": socket.gethostname()}), False),
        (json.dumps({"pid": DEAD, "host": "elsewhere"}), False),
    ],
)
def test_without_locks_of_the_system_the_file_is_believed(
    content: str, free: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "fcntl", None)
    (tmp_path / "lock").write_text(content)
    if free:
        with locked(tmp_path):
            pass
        return
    with pytest.raises(
        FedtailError, match=r"is in use by process .*: if it has ended, remove '.*lock'"
    ):
        locked(tmp_path).__enter__()
    assert (tmp_path / "lock").read_text() == content
