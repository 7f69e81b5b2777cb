"""One data set in one ``npz``: `Raw`'s names as keys, no pickled objects."""

from __future__ import annotations

import math
import os
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib.format import (
    MAGIC_PREFIX,
    read_array,
    read_array_header_1_0,
    read_array_header_2_0,
    read_magic,
)

from fedtail.data.memory import memory
from fedtail.data.raw import RAW_KEYS, Raw
from fedtail.errors import FedtailError, shown
from fedtail.metrics.traffic import human_bytes
from fedtail.plugins import first_line

REQUIRED = ("x_train", "y_train")


def read_npz(path: Path) -> Raw:
    """Return the arrays of a file; keys that mean nothing here are left alone.

    What it claims to hold is read from its headers and compared with its own directory and with
    this machine's memory before anything is unpacked.
    """
    return Raw(**read_arrays(path, RAW_KEYS, REQUIRED))


def read_arrays(path: Path, keys: Sequence[str], required: Sequence[str] = ()) -> dict[str, Any]:
    """Return those arrays of a file that are asked for, checked as `read_npz` does."""
    if not path.is_file():
        raise FedtailError(f"there is no file {path}")
    with path.open("rb") as file:
        return _read(file, path, keys, required)


def write_npz(path: Path, raw: Raw) -> None:
    """Write the arrays beside the target and rename, so that no half file is ever seen."""
    arrays = {key: getattr(raw, key) for key in RAW_KEYS}
    arrays = {key: np.asarray(value) for key, value in arrays.items() if value is not None}
    objects = [key for key, value in arrays.items() if value.dtype.hasobject]
    if objects:
        raise FedtailError(f"{path}: '{objects[0]}' holds Python objects, which cannot be kept")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        dir=path.parent, prefix=f".{path.name}-", delete=False
    ) as draft:
        try:
            np.savez(draft, **arrays)
            draft.flush()
            os.fsync(draft.fileno())
            Path(draft.name).chmod(0o644)  # a temporary file is private; data is shared
            Path(draft.name).replace(path)
        except BaseException:
            Path(draft.name).unlink(missing_ok=True)
            raise


def _read(
    file: BinaryIO, path: Path, keys: Sequence[str], required: Sequence[str]
) -> dict[str, Any]:
    if file.read(len(MAGIC_PREFIX)) == MAGIC_PREFIX:
        wanted = ", ".join(required or keys[:1])
        raise FedtailError(f"{path} holds one array; an npz with {wanted} is needed")
    try:
        archive = zipfile.ZipFile(file)
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise FedtailError(f"{path} is not an npz file, or it is damaged") from error
    with archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        missing = [key for key in required if key not in members]
        if missing:
            found = shown(sorted(members))
            raise FedtailError(f"{path}: key '{missing[0]}' is missing (found: {found})")
        chosen = {key: members[key] for key in keys if key in members}
        sizes = {key: _checked_size(archive, info, path) for key, info in chosen.items()}
        _check_fits(sizes, path)
        return {key: _array(archive, info, path) for key, info in chosen.items()}


def _checked_size(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> int:
    """Return how many bytes an array takes, read from its header; nothing is unpacked."""
    key = info.filename.removesuffix(".npy")
    with _explained(key, path), archive.open(info) as member:
        version = read_magic(member)
        read_header = read_array_header_1_0 if version == (1, 0) else read_array_header_2_0
        shape, _, dtype = read_header(member)
        header = member.tell()
    if dtype.hasobject:
        raise FedtailError(f"{path}: '{key}' holds Python objects; pickled objects are refused")
    size = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or header + size != info.file_size:
        raise FedtailError(
            f"{path}: '{key}' claims to be {shown(dtype)} of shape {shown(shape)}, but the file "
            f"holds {human_bytes(info.file_size - header)} of it"
        )
    return size


def _check_fits(sizes: Mapping[str, int], path: Path) -> None:
    """Refuse arrays that are larger than the memory: a small file can claim to be any size."""
    room = memory()
    if sum(sizes.values()) > room:
        key = max(sizes, key=sizes.__getitem__)
        raise FedtailError(
            f"{path} needs {human_bytes(sum(sizes.values()))} of memory ('{key}' alone "
            f"{human_bytes(sizes[key])}), but there are {human_bytes(room)}"
        )


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> np.ndarray:
    with _explained(info.filename.removesuffix(".npy"), path), archive.open(info) as member:
        return read_array(member, allow_pickle=False)


@contextmanager
def _explained(key: str, path: Path) -> Iterator[None]:
    try:
        yield
    except MemoryError:
        raise FedtailError(f"{path}: there is not enough memory for '{key}'") from None
    except Exception as error:  # zip, deflate and npy each fail in ways of their own
        raise FedtailError(
            f"{path}: '{key}' cannot be read, the file is damaged or no npz ({first_line(error)})"
        ) from error
