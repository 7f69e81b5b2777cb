"""``metrics.jsonl``: one JSON object a round, appended and synced."""

from __future__ import annotations

import json
import logging
import math
import operator
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedtail.callbacks.base import Callback, Record, RunInfo
from fedtail.errors import FedtailError, some
from fedtail.files import append_line, make_folder, write_atomic

logger = logging.getLogger("fedtail")


class JsonLines(Callback):
    """Append one line a round to a file that any JSON reader accepts.

    A run that starts anew empties the file. One that resumes keeps the rounds it will not do
    again: rounds after its checkpoint are cut off, and so is what cannot be read.

    Parameters
    ----------
    path
        The file, ``metrics.jsonl`` of the run folder.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._started = False

    def on_start(self, info: RunInfo) -> None:
        """Cut the file back to the rounds already done."""
        make_folder(self.path.parent)
        kept = _lines(self.path, info.done) if info.done else []
        write_atomic(self.path, "".join(f"{line}\n" for line, _ in kept))
        self._started = True

    def on_round(self, record: Record) -> None:
        """Append the round; the disk has it before a checkpoint stands on it."""
        if not self._started:
            raise FedtailError("JsonLines.on_round came before on_start")
        append_line(self.path, _line(record), sync=True)

    def close(self) -> None:
        """Take no more rounds."""
        self._started = False


def rebuild(path: Path, records: Iterable[Record]) -> None:
    """Write the whole file anew."""
    write_atomic(path, "".join(f"{_line(record)}\n" for record in records))


def read_records(path: Path | str, until: int | None = None) -> list[dict[str, Any]]:
    """Return the records of a ``metrics.jsonl``, up to a round if one is given.

    A file that is not there has none. Lines that cannot be read are passed over: silently the last
    one, if a kill tore it, and others with a warning.
    """
    return [record for _, record in _lines(Path(path), until)]


def json_ready(value: Any) -> Any:
    """Return plain JSON data: NaN and infinities as `None`, one-element arrays as numbers."""
    if isinstance(value, Mapping):
        return {str(key): json_ready(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(item) for item in value]
    if hasattr(value, "item"):  # a NumPy or torch number that a method has logged
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _line(record: Record) -> str:
    return json.dumps(json_ready(record), allow_nan=False, ensure_ascii=False)


def _lines(path: Path, until: int | None) -> list[tuple[str, dict[str, Any]]]:
    """Return the lines of the file that are rounds, each as written and as read."""
    if not path.exists():
        return []
    found: list[tuple[str, dict[str, Any]]] = []
    odd: list[int] = []
    # Bytes, because a kill may tear a line in the middle of a character.
    raw = path.read_bytes().split(b"\n")
    for number, line in enumerate(raw, start=1):
        try:
            record, text = json.loads(line), line.decode()
            at = operator.index(record["round"])
        except (ValueError, TypeError, KeyError):
            odd.append(number)
            continue
        if until is None or at <= until:
            found.append((text, record))
    if odd[-1:] == [len(raw)]:  # what follows the last newline: nothing, or a torn line
        del odd[-1]
    if odd:
        said = "'%s': what is not the record of a round is left out (line %s)"
        logger.warning(said, path, some(odd))
    return found
