"""A folder of images or of sound, one sub-folder a class."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedtail.data.dataset import About, Dataset, Source
from fedtail.data.formats.images import IMAGE_SUFFIXES, ImageFiles, Mode, open_image
from fedtail.data.formats.sound import SOUND_SUFFIXES, read_clips
from fedtail.data.raw import Raw
from fedtail.data.sources.own import OwnSource, PathText, existing
from fedtail.errors import FedtailError


@Source.register("folder")
class Folder(OwnSource):
    """Images as ``path/train/CLASS/*.png`` and ``path/test/CLASS/*.png``, or ``path/CLASS/*.png``.

    Without ``test`` the folder ``val`` is the test set, and without both, or in the second form, a
    seeded share of each class. Wav files do as well.
    """

    about: ClassVar[About] = About("your own images or wav files, one folder a class")

    path: PathText = Field(description="the folder, also looked for in FEDTAIL_DATA")
    size: int | None = Field(
        None, ge=1, description="bring the shorter side to this and cut a square from the centre"
    )
    colour: Literal["auto", "rgb", "grey"] = Field(
        "auto", description="channels; auto: as the first training image has"
    )
    seconds: float | None = Field(
        None,
        gt=0,
        description="of sound: cut clips after this, and end shorter ones in silence; absent: the "
        "longest clip of the training set",
    )

    def load(self) -> Dataset:
        """Decode all files into memory."""
        root = existing(self.path, "folder")
        parts = parts_of(root)
        classes = sorted({entry.name for part in parts for entry in _class_folders(part)})
        found = [class_files(part, classes) for part in parts]
        files = [[file for file, _ in pairs] for pairs in found]
        y = [np.array([label for _, label in pairs]) for pairs in found]
        source: OwnSource = self
        if is_sound([file for part in files for file in part], root):
            x, source = self._sounds(files)
        else:
            form = self._format(files[0][0])  # the test images are read as the training images
            x = [self._images(*each, *form) for each in zip(parts, files, strict=True)]
        x_test, y_test = (x[1], y[1]) if len(parts) == 2 else (None, None)
        return source.dataset(Raw(x[0], y[0], x_test, y_test, classes), str(root))

    def _sounds(self, files: list[list[Path]]) -> tuple[list[Any], OwnSource]:
        """Return waveforms, and the source with what the files say of them."""
        waves, rate = read_clips(files[0], self.rate, self.seconds)
        rest = [read_clips(part, rate, waves.shape[1] / rate)[0] for part in files[1:]]
        # One pair of numbers: a mean of its own for each moment would be noise.
        plain = {"normalisation": "global"} if self.normalisation == "standard" else {}
        return [waves, *rest], self.but(rate=rate, **plain)

    def _images(self, part: Path, files: list[Path], mode: Mode, size: tuple[int, int]) -> Tensor:
        names = tuple(str(file.relative_to(part)) for file in files)
        images = ImageFiles(str(part), names, mode, self.size or 0, size)
        return images[torch.arange(len(images))]

    def _format(self, first: Path) -> tuple[Mode, tuple[int, int]]:
        with open_image(first) as image:
            grey = self.colour == "grey" or (self.colour == "auto" and image.mode in ("1", "L"))
            width, height = image.size
        mode: Mode = "L" if grey else "RGB"
        return mode, (self.size or height, self.size or width)

    @classmethod
    def advice(cls) -> str:
        """Return how to name the folder."""
        return "data.path=FOLDER"


def parts_of(root: Path) -> list[Path]:
    """Return the folders of the training set and of the test set; the whole one without such."""
    inside = {entry.name.lower(): entry for entry in root.iterdir() if entry.is_dir()}
    train, test = inside.get("train"), inside.get("test", inside.get("val"))
    if train is None:
        return [root]
    if test is not None:
        return [train, test]
    return [train if any(entry.is_dir() for entry in train.iterdir()) else root]


def media(folder: Path) -> list[Path]:
    """Return the images and sounds directly in a folder, by name."""
    known = (*IMAGE_SUFFIXES, *SOUND_SUFFIXES)
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in known)


def class_files(part: Path, classes: list[str]) -> list[tuple[Path, int]]:
    """Return the files of each class with its number, class by class."""
    found = [
        (file, label)
        for label, name in enumerate(classes)
        if (part / name).is_dir()
        for file in media(part / name)
    ]
    if not found:
        raise FedtailError(f"{part} holds no images or wav files in folders of classes")
    return found


def is_sound(files: list[Path], where: Path) -> bool:
    """Whether these files are sound and not images; both together are refused."""
    sounds = [file for file in files if file.suffix.lower() in SOUND_SUFFIXES]
    if sounds and len(sounds) != len(files):
        raise FedtailError(f"{where} holds both images and wav files, such as {sounds[0]}")
    return bool(sounds)


def _class_folders(part: Path) -> list[Path]:
    folders = [entry for entry in part.iterdir() if entry.is_dir() and entry.name[0] != "."]
    if not folders:
        raise FedtailError(f"{part} holds no folders of classes")
    return folders
