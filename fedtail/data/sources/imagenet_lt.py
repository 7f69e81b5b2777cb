"""ImageNet-LT: the official lists over a folder of ImageNet images, decoded on demand.

Z. Liu et al., "Large-Scale Long-Tailed Recognition in an Open World", CVPR 2019.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import ClassVar

import numpy as np
from pydantic import Field, model_validator

from fedtail.data.dataset import About, Dataset, Samples, Source, checked_labels
from fedtail.data.formats.images import ImageFiles, open_image
from fedtail.data.public import data_folder
from fedtail.errors import FedtailError

IMAGE_LISTS = ("ImageNet_LT_train.txt", "ImageNet_LT_test.txt")
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@Source.register("imagenet_lt")
class ImagenetLT(Source):
    """115,846 training images of 1,000 classes, 1,280 down to 5 a class; 50,000 test images."""

    default_model: ClassVar[str] = "resnet50"
    about: ClassVar[About] = About(
        "photographs with a fixed long tail, decoded on demand", "115,846 / 50,000", "1,000"
    )

    path: str = Field("", description="folder of the images and lists; empty: in FEDTAIL_DATA")
    resize: int = Field(256, ge=1, description="pixels that the shorter side is brought to")
    size: int = Field(224, ge=1, description="side of the square cut from the centre")

    @model_validator(mode="after")
    def _fits(self) -> ImagenetLT:
        if self.size > self.resize:
            raise FedtailError(f"'size' = {self.size} is larger than 'resize' = {self.resize}")
        return self

    def load(self) -> Dataset:
        """Read the lists; images stay on disk."""
        root = Path(self.path).expanduser() if self.path else data_folder() / self.name
        for file in IMAGE_LISTS:
            if not (root / file).is_file():
                raise FedtailError(f"there is no {root / file}: {self.advice()}")
        names, labels = _read_list(root / IMAGE_LISTS[0])
        test_names, test_labels = _read_list(root / IMAGE_LISTS[1])
        classes = _class_names(names, labels)
        return Dataset(
            train=self._samples(root, names, labels, len(classes), IMAGE_LISTS[0]),
            test=self._samples(root, test_names, test_labels, len(classes), IMAGE_LISTS[1]),
            classes=classes,
            mean=IMAGENET_MEAN,
            std=IMAGENET_STD,
        )

    def _samples(
        self, root: Path, names: tuple[str, ...], labels: np.ndarray, classes: int, where: str
    ) -> Samples:
        open_image(root / names[0]).close()  # a wrong folder is told now, not in the first round
        images = ImageFiles(str(root), names, "RGB", self.resize, (self.size, self.size))
        return Samples(images, checked_labels(labels, classes, where))

    @classmethod
    def located(cls) -> str | None:
        """Return the folder, if it has both lists."""
        root = data_folder() / cls.name
        return str(root) if all((root / file).is_file() for file in IMAGE_LISTS) else None

    @classmethod
    def advice(cls) -> str:
        """Return what to put where: ImageNet's terms allow no download by a program."""
        return (
            f"put {' and '.join(IMAGE_LISTS)} with the images they name (train/..., val/...) "
            f"into {data_folder() / cls.name}, or name their folder as data.path"
        )


def _read_list(path: Path) -> tuple[tuple[str, ...], np.ndarray]:
    """Return image names and labels; a line is a name, a space and a label."""
    rows = [
        line.rsplit(maxsplit=1) for line in path.read_text("utf-8").splitlines() if line.strip()
    ]
    if not rows or any(len(row) != 2 or not row[1].isdigit() for row in rows):
        raise FedtailError(f"{path}: every line must be an image and its label")
    return tuple(row[0] for row in rows), np.array([int(row[1]) for row in rows])


def _class_names(names: tuple[str, ...], labels: np.ndarray) -> tuple[str, ...]:
    """Name a class by the folder of its first training image."""
    found: dict[int, str] = {}
    for name, label in zip(names, labels.tolist(), strict=True):
        found.setdefault(label, PurePosixPath(name).parent.name)
    return tuple(found.get(c) or str(c) for c in range(int(labels.max()) + 1))
