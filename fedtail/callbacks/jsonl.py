"""``metrics.jsonl``: one JSON object a round, appended and flushed."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from fedtail.callbacks.base import Callback, Record, RunInfo
from fedtail.errors import FedtailError
from fedtail.files import make_folder, write_atomic


class JsonLines(Callback):
    """Append one line a round to a file that any JSON reader accepts.

    A run that starts anew empties the file. One that resumes keeps the rounds it will not do
    again: rounds after its checkpoint are cut off, and so is a last line torn by a kill.

    Parameters
    ----------
    path
        The file, ``metrics.jsonl`` of the run folder.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._file: TextIO | None = None

    def on_start(self, info: RunInfo) -> None:
        """Cut the file back to the rounds already done and open it."""
        kept = _lines(self.path, info.done) if info.done else []
        make_folder(self.path.parent)
        write_atomic(self.path, "".join(f"{line}\n" for line, _ in kept))
        try:
            self._file = self.path.open("a", encoding="utf-8", newline="\n")
        except OSError as error:
            raise self._unwritable(error) from None

    def on_round(self, record: Record) -> None:
        """Append the round; it is on its way to the disk before the next one starts."""
        if self._file is None:
            raise FedtailError("JsonLines.on_round came before on_start")
        line = json.dumps(json_ready(record), allow_nan=False, ensure_ascii=False)
        try:
            self._file.write(f"{line}\n")
            self._file.flush()
        except OSError as error:
            raise self._unwritable(error) from None

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            file, self._file = self._file, None
            # What a full disk did not take is tried again here; the round's own error said it.
            with contextlib.suppress(OSError):
                file.close()

    def _unwritable(self, error: OSError) -> FedtailError:
        return FedtailError(f"cannot write '{self.path}': {error.strerror}")


def read_records(path: Path | str, until: int | None = None) -> list[dict[str, Any]]:
    """Return the records of a ``metrics.jsonl``, up to a round if one is given.

    A file that is not there has none; a last line torn by a kill is passed over.
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


def _lines(path: Path, until: int | None) -> list[tuple[str, dict[str, Any]]]:
    """Return the whole lines of the file, each as written and as read."""
    if not path.exists():
        return []
    found: list[tuple[str, dict[str, Any]]] = []
    # Bytes, because a kill may tear a line in the middle of a character.
    raw = path.read_bytes().split(b"\n")
    for number, line in enumerate(raw, start=1):
        try:
            record = json.loads(line)
            at = int(record["round"])
        except (ValueError, TypeError, KeyError) as error:
            if number == len(raw):  # what follows the last newline: nothing, or a torn line
                break
            raise FedtailError(f"{path}, line {number} is not the record of a round") from error
        if until is None or at <= until:
            found.append((line.decode(), record))
    return found
