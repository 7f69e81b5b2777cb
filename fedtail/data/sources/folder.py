"""A folder of images, one sub-folder a class."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from fedtail.data.dataset import About, Dataset, Source
from fedtail.data.formats.images import ImageFiles, Mode, image_names, open_image
from fedtail.data.raw import Raw
from fedtail.data.sources.own import OwnSource, PathText, existing
from fedtail.errors import FedtailError


@Source.register("folder")
class Folder(OwnSource):
    """Images as ``path/train/CLASS/*.png`` and ``path/test/CLASS/*.png``, or ``path/CLASS/*.png``.

    In the second form a seeded share of each class is the test set.
    """

    about: ClassVar[About] = About("your own images, one folder a class")

    path: PathText = Field(description="the folder, also looked for in FEDTAIL_DATA")
    size: int | None = Field(
        None, ge=1, description="bring the shorter side to this and cut a square from the centre"
    )
    colour: Literal["auto", "rgb", "grey"] = Field(
        "auto", description="channels; auto: as the first image has"
    )

    def load(self) -> Dataset:
        """Decode all images into memory."""
        root = existing(self.path, "folder")
        parts = [root / "train", root / "test"]
        if not all(part.is_dir() for part in parts):
            parts = [root]
        classes = sorted({entry.name for part in parts for entry in _class_folders(part)})
        x, y = self._read(parts[0], classes)
        x_test, y_test = self._read(parts[1], classes) if len(parts) == 2 else (None, None)
        return self.dataset(Raw(x, y, x_test, y_test, classes), str(root))

    def _read(self, part: Path, classes: list[str]) -> tuple[torch.Tensor, np.ndarray]:
        found = [
            (str(file.relative_to(part)), label)
            for label, name in enumerate(classes)
            if (part / name).is_dir()
            for file in image_names(part / name)
        ]
        if not found:
            raise FedtailError(f"{part} holds no images in folders of classes")
        names = tuple(name for name, _ in found)
        mode, height, width = self._format(part / names[0])
        images = ImageFiles(str(part), names, mode, self.size or 0, (height, width))
        return images[torch.arange(len(images))], np.array([label for _, label in found])

    def _format(self, first: Path) -> tuple[Mode, int, int]:
        with open_image(first) as image:
            grey = self.colour == "grey" or (self.colour == "auto" and image.mode in ("1", "L"))
            width, height = image.size
        mode: Mode = "L" if grey else "RGB"
        return mode, self.size or height, self.size or width

    @classmethod
    def advice(cls) -> str:
        """Return how to name the folder."""
        return "data.path=FOLDER"


def _class_folders(part: Path) -> list[Path]:
    folders = [entry for entry in part.iterdir() if entry.is_dir() and entry.name[0] != "."]
    if not folders:
        raise FedtailError(f"{part} holds no folders of classes")
    return folders
