"""One data set in one ``npz``: `Raw`'s names as keys, no pickled objects."""

from __future__ import annotations

import os
import tempfile
import zipfile
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fedtail.data.raw import RAW_KEYS, Raw
from fedtail.errors import FedtailError

REQUIRED = ("x_train", "y_train")


def read_npz(path: Path) -> Raw:
    """Return the arrays of a file; keys that mean nothing here are left alone."""
    if not path.is_file():
        raise FedtailError(f"there is no file {path}")
    # Opened here: NumPy leaves a file open that turns out not to be a zip archive.
    with path.open("rb") as file:
        return _read(file, path)


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


def _read(file: BinaryIO, path: Path) -> Raw:
    try:
        archive = np.load(file, allow_pickle=False)
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise FedtailError(f"{path} is not an npz file without pickled objects") from error
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise FedtailError(f"{path} holds one array; an npz with {', '.join(REQUIRED)} is needed")
    with archive:
        missing = [key for key in REQUIRED if key not in archive]
        if missing:
            raise FedtailError(
                f"{path}: key '{missing[0]}' is missing (found: {', '.join(sorted(archive))})"
            )
        return Raw(**{key: _array(archive, key, path) for key in RAW_KEYS if key in archive})


def _array(archive: np.lib.npyio.NpzFile, key: str, path: Path) -> np.ndarray:
    try:
        array: np.ndarray = archive[key]
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise FedtailError(
            f"{path}: '{key}' cannot be read (pickled objects are refused)"
        ) from error
    return array
