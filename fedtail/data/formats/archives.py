"""Members of tar files and Debian packages, read in memory: nothing is unpacked to a path."""

from __future__ import annotations

import io
import lzma
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from fedtail.errors import FedtailError

AR_MAGIC = b"!<arch>\n"
AR_HEADER = 60


def read_members(path: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """Return the content of the members of a tar file that have these file names."""
    with opened_tar(path) as archive:
        return _chosen(archive, names, str(path))


def read_deb(path: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """Return the content of the files in a Debian package that have these file names."""
    for name, content in _ar_members(path.read_bytes(), str(path)):
        if name.startswith("data.tar"):
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                return _chosen(archive, names, str(path))
    raise FedtailError(f"{path} is not a Debian package with data")


@contextmanager
def opened_tar(source: Path | BinaryIO) -> Iterator[tarfile.TarFile]:
    """Open a tar file of any compression for one pass; damage is told in one sentence."""
    try:
        if isinstance(source, Path):
            with tarfile.open(source, "r|*") as archive:
                yield archive
        else:
            with tarfile.open(fileobj=source, mode="r|*") as archive:
                yield archive
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise FedtailError(f"{source} is a damaged archive: {error}") from error


def _chosen(archive: tarfile.TarFile, names: tuple[str, ...], where: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for member in archive:
        name = Path(member.name).name
        stream = archive.extractfile(member) if name in names and member.isfile() else None
        if stream is not None:
            found[name] = stream.read()
    missing = [name for name in names if name not in found]
    if missing:
        raise FedtailError(f"{where} holds no {missing[0]}")
    return found


def _ar_members(data: bytes, where: str) -> Iterator[tuple[str, bytes]]:
    if not data.startswith(AR_MAGIC):
        raise FedtailError(f"{where} is not a Debian package")
    position = len(AR_MAGIC)
    while position + AR_HEADER <= len(data):
        header = data[position : position + AR_HEADER]
        size = int(header[48:58])
        position += AR_HEADER
        yield header[:16].decode("ascii").strip().rstrip("/"), data[position : position + size]
        position += size + size % 2  # members start at even places
