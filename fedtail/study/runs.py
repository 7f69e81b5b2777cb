"""Runs as they stand in their folders: finished, half-way, or torn by a kill."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtail.callbacks.jsonl import read_records
from fedtail.callbacks.tracking import dotted
from fedtail.errors import FedtailError
from fedtail.folder import RunFolder
from fedtail.metrics.curves import shipped_record

COMPARISON = "comparison.json"
"""What a study leaves beside its runs: a row a method, in the order typed."""
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
    def label(self) -> str:
        """The words that a study was given for the run; nothing if it is of no study."""
        name, suffix = str(self.settings.get("name", "")), seeded("", self.seed)
        return name.removesuffix(suffix) if name.endswith(suffix) else ""

    @property
    def tested(self) -> Plain | None:
        """The round whose model is shipped, if it was tested; of a run that goes on, the last test.

        `test` may change on the way: what other rounds were tested with says nothing of the result.
        """
        if self.finished:
            shipped = _shipped(self.records) or {}
            return shipped if _was_tested(shipped) else None
        return next(
            (dict(record) for record in reversed(self.records) if _was_tested(record)), None
        )

    @property
    def validated(self) -> Plain | None:
        """The round whose model is shipped, or would be by now, among those that were validated."""
        return _shipped([record for record in self.records if record.get("validation")])


def _was_tested(record: Plain) -> bool:
    return record.get("accuracy") is not None


def _shipped(records: list[Plain]) -> Plain | None:
    return dict(shipped_record(records)) if records else None


def seeded(label: str, seed: int) -> str:
    """Return what a run of a study is called."""
    return f"{label} seed {seed}"


def read_runs(folders: Sequence[Path | str]) -> list[Run]:
    """Return every run in some folders: run folders, or folders with runs somewhere inside.

    Parameters
    ----------
    folders
        What to read; a folder named twice is read once.
    """
    paths: dict[Path, Path] = {}
    for folder in map(Path, folders):
        found = run_folders(folder)
        if not found:
            raise FedtailError(
                f"'{folder}' holds no run: give a run folder, or one with run folders inside"
            )
        for path in found:
            paths.setdefault(path.resolve(), path)
    return in_typed_order([read_run(path) for path in paths.values()])


def in_typed_order(runs: Sequence[Run]) -> list[Run]:
    """Return the runs of a study as its methods were typed; what is of no study stays in place."""
    parents = list(dict.fromkeys(run.path.parent for run in runs))
    typed = {parent: _typed(parent / COMPARISON) for parent in parents}

    def place(run: Run) -> tuple[int, int]:
        parent = run.path.parent
        return parents.index(parent), typed[parent].get(run.label, len(typed[parent]))

    return sorted(runs, key=place)


def _typed(path: Path) -> dict[str, int]:
    """Return the places of the labels of a study; none if its file is not there or is odd."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        return {str(row["method"]): number for number, row in enumerate(rows)}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


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


def run_folders(folder: Path) -> list[Path]:
    """Return the folder itself if it is that of a run, or all that are somewhere inside."""
    if not folder.is_dir():
        raise FedtailError(f"'{folder}' is not a folder")
    if RunFolder(folder).experiment.is_file():
        return [folder]
    return sorted(file.parent for file in folder.rglob("experiment.toml"))


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
