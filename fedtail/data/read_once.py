"""The data set that was read last: runs of one process often read the same file, one by one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedtail.data.dataset import Dataset, Source

_last: dict[Any, Dataset] = {}  # at most one


def read_once(source: Source, path: Path, load: Callable[[], Dataset]) -> Dataset:
    """Return what `load` reads, or what it read last, if neither source nor file has changed.

    Parameters
    ----------
    source
        Whose data set it is: all fields count.
    path
        The file; its size, its number and the time of its last change count.
    load
        Reads the file and checks what it holds.
    """
    key = source, _stamp(path)
    if key not in _last:
        _last.clear()  # first: there need not be memory for both
        dataset = load()
        if _stamp(path) == key[1]:
            _last[key] = dataset
        return dataset
    return _last[key]


def _stamp(path: Path) -> tuple[str, int, int, int]:
    found = path.stat()
    return str(path.resolve()), found.st_size, found.st_mtime_ns, found.st_ino
