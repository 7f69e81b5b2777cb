"""What a command must not write over: the files that it reads, and those of a run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fedtail.data.formats.images import IMAGE_SUFFIXES
from fedtail.data.formats.sound import SOUND_SUFFIXES
from fedtail.errors import FedtailError
from fedtail.folder import RunFolder

OF_RUNS = {".toml", ".json", ".jsonl", ".safetensors", ".sha256"}
"""What a run writes; tables, pages, pictures and exported models end otherwise."""


def must_not_replace(out: Path, inputs: Iterable[Path] = ()) -> None:
    """Refuse to write where a run keeps what is its own, or where an input is.

    Parameters
    ----------
    out
        The file that is to be written.
    inputs
        Files that are read, or folders of images and wav files.
    """
    folders = out.resolve().parents
    if out.suffix.lower() in OF_RUNS and any(map(_holds_run, folders)):
        raise FedtailError(f"'{out}' is refused: it is among the files of a run; name another file")
    if any(_reads(given, out) for given in inputs):
        raise FedtailError(f"'{out}' is refused: it is an input; name another file")


def _holds_run(folder: Path) -> bool:
    run = RunFolder(folder)  # a description alone may be anybody's, written by hand
    return run.experiment.is_file() and run.environment.is_file()


def _reads(given: Path, out: Path) -> bool:
    if not out.is_file() or not given.exists():
        return False
    if given.is_dir():
        read = out.suffix.lower() in (*IMAGE_SUFFIXES, *SOUND_SUFFIXES)
        return read and given.resolve() in out.resolve().parents
    return out.samefile(given)
