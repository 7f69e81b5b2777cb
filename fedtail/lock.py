"""One process at a time writes to a run folder.

The file ``lock`` names the process and the host that hold it. The operating system lets go of a
lock when its process ends, however it ends; a file that stays behind locks nothing. Where there are
no such locks (Windows, some network file systems) the file alone is believed.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil

from fedtail.errors import FedtailError
from fedtail.files import make_folder

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]  # Windows has none

LOCK = "lock"


@contextlib.contextmanager
def locked(folder: Path, wait: bool = False) -> Iterator[None]:
    """Hold a folder, which is made if it must be, or refuse in the name of who holds it.

    Parameters
    ----------
    folder
        What is held.
    wait
        Wait for who holds it, instead.
    """
    made = not folder.exists()
    make_folder(folder)
    path = folder / LOCK
    file = _take(path, wait)
    try:
        os.ftruncate(file, 0)
        os.lseek(file, 0, os.SEEK_SET)
        os.write(file, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
        yield
    finally:
        # Removed while it is held: who opened it meanwhile sees that it is the lock no more.
        with contextlib.suppress(OSError):
            path.unlink()
            if made:  # nothing is left of a run that could not begin
                folder.rmdir()
        os.close(file)


def _take(path: Path, wait: bool) -> int:
    while True:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise FedtailError(f"cannot write '{path}': {error.strerror}") from None
        refusal = _refusal(path, file, wait)
        if not refusal and _is_at(path, file):
            return file
        os.close(file)
        if refusal:
            raise FedtailError(refusal)


def _refusal(path: Path, file: int, wait: bool) -> str:
    """Lock the file, or say who has it."""
    advice = ""
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            return ""
    except BlockingIOError:
        advice = "wait for it, or end it"
    except OSError:
        pass  # a file system without locks
    pid, host = _holder(file)
    if not advice:
        if not pid or (host == socket.gethostname() and not psutil.pid_exists(pid)):
            return ""
        advice = f"if it has ended, remove '{path}'"
    holder = f"process {pid} on {host}" if pid else "another process"
    return f"'{path.parent}' is in use by {holder}: {advice}"


def _holder(file: int) -> tuple[int, str]:
    """Return the process and the host that the file names; 0 if it was torn by a kill."""
    try:
        named = json.loads(os.read(file, 1000))
        return int(named["pid"]), str(named["host"])
    except (ValueError, KeyError, TypeError):
        return 0, ""


def _is_at(path: Path, file: int) -> bool:
    """Whether the open file is still the one of that name: its last holder may have removed it."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
