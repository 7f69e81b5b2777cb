"""BalanceFL's IMU set: eight activities of thirty people, one person a client.

The set is given by its authors on request for non-commercial use, in no fixed format, so this
source reads a plain layout: ``imu.npz``, or ``imu/train/PERSON.csv`` and ``imu/test/PERSON.csv``
(or ``.npy``) with one window a row: the label, then 1,800 values (200 moments of 9 channels).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedtail.data.dataset import About, Dataset, Source
from fedtail.data.public import PublicSource
from fedtail.data.raw import Raw, dataset_from
from fedtail.errors import FedtailError

WINDOW = (200, 9)
VALUES = WINDOW[0] * WINDOW[1]
ACTIVITIES = 8
IMU_SUFFIXES = (".csv", ".npy")


@Source.register("imu")
class Imu(PublicSource):
    """Windows of accelerometer, gyroscope and magnetometer, flattened to 1,800 numbers."""

    default_model: ClassVar[str] = "mlp"
    shape: ClassVar[tuple[int, ...]] = (VALUES,)
    about: ClassVar[About] = About(
        "BalanceFL's activities, 1,800 numbers", "6,137 / 3,989", "8", "30 people"
    )

    def dataset(self, raw: Raw, where: str) -> Dataset:
        """Return the data set; windows of 200x9 are flattened."""
        if raw.x_test is None:
            raise FedtailError(f"{where}: x_test and y_test are missing")
        x, x_test = (a.reshape(len(a), -1) for a in (raw.x_train, raw.x_test))
        names = [str(c) for c in range(ACTIVITIES)] if raw.classes is None else raw.classes
        flat = replace(raw, x_train=x, x_test=x_test, classes=names)
        return dataset_from(flat, where)

    @classmethod
    def official(cls, folder: Path) -> dict[str, Path]:
        """Return the folders of the training and the test set."""
        parts = {part: folder / cls.name / part for part in ("train", "test")}
        return parts if all(path.is_dir() for path in parts.values()) else {}

    @classmethod
    def read(cls, files: Mapping[str, Path]) -> Raw:
        """Return the arrays of all people."""
        x, y, people = _read_people(files["train"])
        x_test, y_test, people_test = _read_people(files["test"])
        return Raw(x, y, x_test, y_test, client_train=people, client_test=people_test)

    @classmethod
    def placing(cls) -> str:
        """Return the layout: there is no public address to fetch from."""
        return (
            "imu.npz, or imu/train/PERSON.csv and imu/test/PERSON.csv "
            f"(a label and {VALUES} values a row)"
        )


def _read_people(folder: Path) -> tuple[np.ndarray, np.ndarray, list[str]]:
    files = sorted(path for path in folder.iterdir() if path.suffix in IMU_SUFFIXES)
    if not files:
        raise FedtailError(f"{folder} holds no .csv or .npy file")
    tables = [_read_table(path) for path in files]
    people = [path.stem for path, table in zip(files, tables, strict=True) for _ in table]
    table = np.concatenate(tables)
    return table[:, 1:].astype(np.float32), table[:, 0], people


def _read_table(path: Path) -> np.ndarray:
    try:
        if path.suffix == ".npy":
            table = np.load(path, allow_pickle=False)
        else:
            table = np.loadtxt(path, delimiter=",", ndmin=2)
    except (OSError, ValueError) as error:
        raise FedtailError(f"{path} is not a table of numbers") from error
    if table.ndim != 2 or table.shape[1] != 1 + VALUES:
        raise FedtailError(f"{path} has shape {table.shape}; a row is a label and {VALUES} values")
    return np.asarray(table, np.float64)
