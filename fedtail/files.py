"""Files are written beside, synced and renamed: a reader sees the old content or the new.

Everything that a run writes goes through here, so that a power cut at any instant leaves what the
order of these calls promises: what was written before a sync is there after it.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from fedtail.errors import FedtailError

BINARY = getattr(os, "O_BINARY", 0)
CANNOT_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF, errno.EACCES, errno.EPERM}
"""What file systems say that cannot sync (often folders only); a broken disk says otherwise."""


def write_atomic(path: Path, content: bytes | str, *, last: bool = True) -> None:
    """Write a file beside its place and rename it there; a full disk leaves the old one.

    Parameters
    ----------
    path, content
        The file, and what it is to hold.
    last
        Whether the folder is synced, too. Of several files that nothing counts on until all are
        there, `sync_folder` does it once.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with _writing(path):
            _put(beside, content, os.O_TRUNC)
            beside.replace(path)
    except FedtailError:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
    if last:
        sync_folder(path.parent)


def append_line(path: Path, line: str, *, sync: bool = False) -> None:
    """Add a line to a file, and sync it if something is to count on it."""
    with _writing(path):
        _put(path, f"{line}\n", os.O_APPEND, sync)


def write_after(path: Path, length: int, content: bytes) -> None:
    """Add to the first bytes of a file, and sync it; what came after them is cut off."""
    with _writing(path):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | BINARY, 0o666)
        try:
            os.ftruncate(file, length)
            os.lseek(file, length, os.SEEK_SET)
            _put_into(file, content)
        finally:
            os.close(file)


def make_folder(path: Path) -> None:
    """Make a folder and its parents."""
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        for folder in [*reversed(new), path]:
            folder.mkdir(exist_ok=True)  # another process may be faster; a file is an error
    except OSError as error:
        raise FedtailError(f"cannot make the folder '{path}': {error.strerror}") from None
    for folder in reversed(new):
        sync_folder(folder.parent)


def remove(path: Path) -> None:
    """Remove a file, if it is there."""
    path.unlink(missing_ok=True)


def sync_folder(path: Path) -> None:
    """Let new, renamed and removed names survive a power cut."""
    with _writing(path):
        try:
            folder = os.open(path, os.O_RDONLY)
        except OSError as error:
            if error.errno in CANNOT_SYNC:  # Windows opens no folder
                return
            raise
        try:
            _sync(folder)
        finally:
            os.close(folder)


def _put(path: Path, content: bytes | str, how: int, sync: bool = True) -> None:
    """Write bytes to a file, and wait until the disk has them."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | how | BINARY, 0o666)
    try:
        _put_into(file, content.encode() if isinstance(content, str) else content, sync)
    finally:
        os.close(file)


def _put_into(file: int, content: bytes, sync: bool = True) -> None:
    data = memoryview(content)
    while data:
        data = data[os.write(file, data) :]
    if sync:
        _sync(file)


def _sync(file: int) -> None:
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno not in CANNOT_SYNC:
            raise


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FedtailError(f"cannot write '{path}': {error.strerror}") from None
