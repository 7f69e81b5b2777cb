"""Rows of a table as text files hold them: CSV, TSV, JSON Lines, or one text a line."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from fedtail.errors import FedtailError, shown, some
from fedtail.plugins import first_line

DELIMITERS = {".csv": ",", ".tsv": "\t"}
JSON_LINES = (".jsonl", ".ndjson")
LINES = ".txt"
"""Not a table: one text a line, for predictions."""
TABLE_SUFFIXES = (*DELIMITERS, *JSON_LINES)
TEXT = "text"
"""What a column of texts is called, and the only column of a file without names."""
WHOLE = r"-?\d{1,4000}"
"""A whole number, with no more digits than Python reads."""

Columns = dict[str, list[Any]]


def read_table(path: Path) -> Columns:
    """Return the columns of a file, by name; all have the same length, and at least one row."""
    suffix = path.suffix.lower()
    if suffix not in (*TABLE_SUFFIXES, LINES):
        raise FedtailError(f"{path} is no table (known: {', '.join(TABLE_SUFFIXES)})")
    if not path.is_file():
        raise FedtailError(f"there is no file {path}")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            if suffix == LINES:
                columns = {TEXT: [line.rstrip("\r\n") for line in file]}
            elif suffix in JSON_LINES:
                columns = _columns(_objects(file, path), path)
            else:
                columns = _columns(_rows(file, DELIMITERS[suffix], path), path)
    except UnicodeDecodeError as error:
        raise FedtailError(f"{path} is not UTF-8 text: {error.reason}") from None
    except csv.Error as error:
        raise FedtailError(f"{path} cannot be read: {first_line(error)}") from None
    if not next(iter(columns.values()), []):
        raise FedtailError(f"{path} holds no rows")
    return columns


def column(columns: Columns, name: str, path: Path) -> list[Any]:
    """Return one column, or say which ones there are."""
    if name not in columns:
        raise FedtailError(f"{path} has no column '{name}' (found: {some(list(columns))})")
    return columns[name]


def inputs(columns: Columns, names: Sequence[str], path: Path, texts: bool | None) -> np.ndarray:
    """Return one column of texts, (rows,), or columns of numbers, (rows, columns).

    Parameters
    ----------
    columns, path
        The table, and its file for messages.
    names
        The columns that are inputs.
    texts
        Whether they are texts; if nobody knows, one column with anything but numbers is.
    """
    chosen = [column(columns, name, path) for name in names]
    if texts or (texts is None and len(chosen) == 1 and not _numbers(chosen[0])):
        if len(chosen) != 1:
            raise FedtailError(
                f"{path}: one column of texts is read, not {some(list(names))}: "
                f"say which, such as data.input={names[0]}"
            )
        return np.array([_text(value, row, path) for row, value in enumerate(chosen[0])], object)
    return np.array(
        [
            [_number(v, row, name, path) for v, name in zip(values, names, strict=True)]
            for row, values in enumerate(zip(*chosen, strict=True))
        ],
        np.float32,
    )


def labels(columns: Columns, name: str, path: Path) -> list[str]:
    """Return a column of labels as names of classes."""
    return _names(column(columns, name, path), name, path)


def owners(columns: Columns, name: str, path: Path) -> np.ndarray:
    """Return a column of clients as names."""
    return np.array(_names(column(columns, name, path), name, path))


def ordered(names: Sequence[str]) -> list[str]:
    """Return the different names in order: by value if all are whole numbers, else by alphabet."""
    found = set(names)
    whole = all(re.fullmatch(WHOLE, name) for name in found)
    return sorted(found, key=lambda name: (int(name) if whole else 0, name))


def _rows(file: TextIO, delimiter: str, path: Path) -> Iterator[dict[str, Any]]:
    rows = csv.reader(file, delimiter=delimiter, strict=True)
    header = next(rows, [])
    twice = next((name for name in header if header.count(name) > 1), None)
    if twice is not None:
        raise FedtailError(f"{path}: two columns are called '{twice}' in the first line")
    for row in rows:
        if not row:  # an empty line
            continue
        if len(row) != len(header):
            raise FedtailError(
                f"{path}, line {rows.line_num}: {len(row)} values, but the first line names "
                f"{len(header)} columns"
            )
        yield dict(zip(header, row, strict=True))


def _objects(file: TextIO, path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise FedtailError(f"{path}, line {number} is not JSON: {first_line(error)}") from None
        if not isinstance(row, dict):
            raise FedtailError(f"{path}, line {number}: an object is needed, got {shown(row)}")
        yield row


def _columns(rows: Iterator[dict[str, Any]], path: Path) -> Columns:
    columns: Columns = {}
    for number, row in enumerate(rows, start=1):
        if number == 1:
            columns = {name: [] for name in row}
        if row.keys() != columns.keys():
            odd = sorted(row.keys() ^ columns.keys())
            raise FedtailError(f"{path}, row {number}: '{odd[0]}' is not in every row")
        for name, value in row.items():
            columns[name].append(value)
    return columns


def _names(values: Sequence[Any], name: str, path: Path) -> list[str]:
    for row, value in enumerate(values, start=1):
        if not isinstance(value, str | int) or value == "":
            raise FedtailError(
                f"{path}, row {row}: '{name}' is {shown(value)}, and a name or a whole number is "
                "needed"
            )
    return [str(value) for value in values]


def _text(value: Any, row: int, path: Path) -> str:
    if not isinstance(value, str):
        raise FedtailError(f"{path}, row {row + 1}: a text is needed, got {shown(value)}")
    return value


def _number(value: Any, row: int, name: str, path: Path) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise FedtailError(
            f"{path}, row {row + 1}: '{name}' is {shown(value)}, which is no number; say which "
            f"""columns are inputs, such as data.input=text or data.input='["a","b"]'"""
        ) from None


def _numbers(values: Sequence[Any]) -> bool:
    try:
        for value in values:
            float(value)
    except (TypeError, ValueError):
        return False
    return True
