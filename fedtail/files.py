"""Files are written beside and renamed: a reader sees the old content or the new, never half."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from fedtail.errors import FedtailError


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write a file beside its place and rename it there; a full disk leaves the old one."""
    data = content.encode() if isinstance(content, str) else content
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        beside.write_bytes(data)
        beside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise FedtailError(f"cannot write '{path}': {error.strerror}") from None


def make_folder(path: Path) -> None:
    """Make a folder and its parents."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FedtailError(f"cannot make the folder '{path}': {error.strerror}") from None
