"""Runs as they stand in their folders: finished, half-way, or torn by a kill."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtail.callbacks.jsonl import read_records
from fedtail.callbacks.tracking import dotted
from fedtail.errors import FedtailError
from fedtail.folder import RunFolder
from fedtail.metrics.curves import shipped_record

Plain = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """What one folder holds.

    Attributes
    ----------
    path
        The folder.
    settings
        The experiment under dotted names (``method.loss.tau``).
    records
        The rounds so far.
    finished
        Whether the run came to its end.
    split, environment, confusion
        The files of these names, or nothing if the run has not written them.
    """

    path: Path
    settings: Plain
    records: list[Plain]
    finished: bool
    split: Plain | None = None
    environment: Plain | None = None
    confusion: Plain | None = None

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.settings.get("method.name", "?"))

    @property
    def seed(self) -> int:
        """The seed."""
        return int(self.settings.get("seed", 0))

    @property
    def tested(self) -> Plain | None:
        """The round whose model is shipped, among those that were tested: the kept, or the last."""
        tested = [record for record in self.records if record.get("accuracy") is not None]
        return dict(shipped_record(tested)) if tested else None


def read_runs(folders: Sequence[Path | str]) -> list[Run]:
    """Return every run in some folders: run folders, or folders with runs somewhere inside.

    Parameters
    ----------
    folders
        What to read; a folder named twice is read once.
    """
    paths: dict[Path, Path] = {}
    for folder in map(Path, folders):
        found = list(_inside(folder))
        if not found:
            raise FedtailError(
                f"'{folder}' holds no run: give a run folder, or one with run folders inside"
            )
        for path in found:
            paths.setdefault(path.resolve(), path)
    return [read_run(path) for path in paths.values()]


def read_run(path: Path | str) -> Run:
    """Return the run in a folder."""
    folder = RunFolder(Path(path))
    folder.must_be_a_run()
    try:
        plain = tomllib.loads(folder.experiment.read_text(encoding="utf-8"))
    except ValueError as error:  # not TOML, or not text
        raise FedtailError(f"'{folder.experiment}' is not valid TOML: {error}") from None
    settings = dotted(plain)
    if not isinstance(settings.get("seed", 0), int):
        raise FedtailError(f"'{folder.experiment}' has no whole number as its seed")
    return Run(
        path=folder.path,
        settings=settings,
        records=_checked(read_records(folder.metrics), folder.metrics),
        finished=folder.finished,
        split=_json(folder.path / "split.json"),
        environment=_json(folder.path / "env.json"),
        confusion=_json(folder.confusion),
    )


def _inside(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        raise FedtailError(f"'{folder}' is not a folder")
    if RunFolder(folder).experiment.is_file():
        yield folder
    else:
        yield from sorted(file.parent for file in folder.rglob("experiment.toml"))


def _checked(records: list[Plain], path: Path) -> list[Plain]:
    """Refuse numbers that are none; what is missing is fine."""
    for record in records:
        values = {key: record.get(key) for key in ("bytes_up", "bytes_down", "seconds")}
        values |= {key: record.get(key) for key in ("accuracy", "many", "medium", "few")}
        for key, value in values.items():
            if value is not None and not isinstance(value, int | float):
                raise FedtailError(
                    f"{path}, round {record['round']}: '{key}' is {value!r}, not a number"
                )
    return records


def _json(path: Path) -> Plain | None:
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        content = None
    if not isinstance(content, Mapping):
        raise FedtailError(f"'{path}' is not a JSON object")
    return dict(content)
