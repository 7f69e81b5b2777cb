"""FEMNIST: hand-written digits and letters by writer, from TFF's h5 files or LEAF's JSON."""

from __future__ import annotations

import importlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedtail.data.dataset import About, Dataset, Source
from fedtail.data.formats.archives import opened_tar
from fedtail.data.public import Archive, PublicSource
from fedtail.data.raw import Raw, dataset_from
from fedtail.errors import FedtailError

FEMNIST_ARCHIVE = "fed_emnist.tar.bz2"
H5 = {"train": "fed_emnist_train.h5", "test": "fed_emnist_test.h5"}
CHARACTERS = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
Drawings = tuple[np.ndarray, np.ndarray, np.ndarray]


@Source.register("femnist")
class Femnist(PublicSource):
    """Federated EMNIST: 62 characters by 3,400 writers, each writer a natural client.

    Values stay in 0..1 (paper is 1), as RedGrape has them.
    """

    default_model: ClassVar[str] = "cnn"
    shape: ClassVar[tuple[int, ...]] = (1, 28, 28)
    about: ClassVar[About] = About(
        "hand-written characters, 28x28 grey", "671,585 / 77,483", "62", "3,400 writers"
    )
    archives: ClassVar[tuple[Archive, ...]] = (
        Archive(
            FEMNIST_ARCHIVE,
            f"https://storage.googleapis.com/tff-datasets-public/{FEMNIST_ARCHIVE}",
            "sha256:fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0",
        ),
    )

    test: Literal["balanced", "full"] = Field(
        "balanced", description="balanced: the first test images of each class; full: all of them"
    )
    per_class: int = Field(200, ge=1, description="test images of each class if balanced")

    def dataset(self, raw: Raw, where: str) -> Dataset:
        """Return the data set, its test set cut as asked."""
        if self.test == "full" or raw.x_test is None or raw.y_test is None:
            return dataset_from(raw, where)
        kept = first_of_each(np.asarray(raw.y_test), self.per_class)
        owner = None if raw.client_test is None else np.asarray(raw.client_test)[kept]
        balanced = replace(raw, x_test=raw.x_test[kept], y_test=raw.y_test[kept], client_test=owner)
        return dataset_from(balanced, where)

    @classmethod
    def official(cls, folder: Path) -> dict[str, Path]:
        """Return TFF's archive, its two files, or LEAF's two folders of JSON."""
        own = folder / cls.name
        h5 = {part: own / file for part, file in H5.items()}
        leaf = {part: own / part for part in H5}
        if all(path.is_file() for path in h5.values()):
            return h5
        if all(path.is_dir() and any(path.glob("*.json")) for path in leaf.values()):
            return leaf
        return super().official(folder)

    @classmethod
    def read(cls, files: Mapping[str, Path]) -> Raw:
        """Return the arrays of whichever files there are."""
        if FEMNIST_ARCHIVE in files:
            return _from_archive(files[FEMNIST_ARCHIVE])
        read_part = read_leaf if files["train"].is_dir() else read_h5
        return _raw(read_part, files)

    @classmethod
    def placing(cls) -> str:
        """Return the formats that can be put in place."""
        leaf = "LEAF's JSON files in femnist/train and femnist/test"
        return f"femnist.npz, {FEMNIST_ARCHIVE}, or {leaf}"


def first_of_each(y: np.ndarray, count: int) -> np.ndarray:
    """Return the positions of the first samples of each class, in file order."""
    kept = [np.flatnonzero(y == c)[:count] for c in np.unique(y)]
    return np.sort(np.concatenate(kept))


def read_h5(path: Path) -> Drawings:
    """Return images, labels and writers of one of TFF's files."""
    try:
        h5py = importlib.import_module("h5py")
    except ImportError as error:
        raise FedtailError("femnist's h5 files need h5py: run `pip install h5py`") from error
    with h5py.File(path, "r") as file:
        return _joined(
            (name, np.asarray(writer["pixels"]), np.asarray(writer["label"]))
            for name, writer in file["examples"].items()
        )


def read_leaf(folder: Path) -> Drawings:
    """Return images, labels and writers of a folder of LEAF's JSON files."""
    return _joined(
        (name, np.array(user["x"], np.float32), np.array(user["y"]))
        for path in sorted(folder.glob("*.json"))
        for name, user in _leaf_users(path)
    )


def _leaf_users(path: Path) -> Iterable[tuple[str, Mapping[str, Any]]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return [(name, content["user_data"][name]) for name in content["users"]]
    except (ValueError, KeyError, TypeError) as error:
        raise FedtailError(f"{path} is not a LEAF file with users and user_data") from error


def _joined(writers: Iterable[tuple[str, np.ndarray, np.ndarray]]) -> Drawings:
    """Join the writers; values in 0..1 become bytes, which is what they were made from."""
    images, labels, owners = [], [], []
    for name, x, y in writers:
        images.append(np.rint(x.reshape(-1, 28, 28) * 255).astype(np.uint8))
        labels.append(y.astype(np.int64))
        owners.append(np.full(len(y), name))
    if not images:
        raise FedtailError("femnist: the files hold no writer")
    return np.concatenate(images), np.concatenate(labels), np.concatenate(owners)


def _raw(read_part: Callable[[Path], Drawings], files: Mapping[str, Path]) -> Raw:
    x, y, owner = read_part(files["train"])
    x_test, y_test, owner_test = read_part(files["test"])
    return Raw(x, y, x_test, y_test, CHARACTERS, owner, owner_test)


def _from_archive(path: Path) -> Raw:
    """Unpack the two h5 files beside the archive for as long as they are read."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".femnist-") as name:
        files = {part: Path(name) / file for part, file in H5.items()}
        with opened_tar(path) as archive:
            for member in archive:
                stream = archive.extractfile(member)
                target = Path(name) / Path(member.name).name
                if stream is not None and target in files.values():
                    with target.open("wb") as out:
                        shutil.copyfileobj(stream, out)
        missing = [file.name for file in files.values() if not file.exists()]
        if missing:
            raise FedtailError(f"{path} holds no {missing[0]}")
        return _raw(read_h5, files)
