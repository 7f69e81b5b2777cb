"""Image files as features: decoded when asked for, or all at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from fedtail.errors import FedtailError

IMAGE_SUFFIXES = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)
Mode = Literal["RGB", "L"]


@dataclass(frozen=True)
class ImageFiles:
    """Image files that are decoded on demand; itself only a list of names, so it pickles small.

    Attributes
    ----------
    root
        The folder that names are relative to.
    names
        One file a sample.
    mode
        "RGB" for three channels, "L" for grey.
    resize
        The shorter side is brought to this many pixels; 0 leaves the image as it is.
    size
        Height and width of what is cut from the centre.
    """

    root: str
    names: tuple[str, ...]
    mode: Mode
    resize: int
    size: tuple[int, int]

    @property
    def shape(self) -> torch.Size:
        """The number of images, then channels, height and width."""
        return torch.Size((len(self.names), 3 if self.mode == "RGB" else 1, *self.size))

    @property
    def dtype(self) -> torch.dtype:
        """Images are bytes."""
        return torch.uint8

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: Tensor) -> Tensor:
        images = [self._decoded(self.names[i]) for i in index.reshape(-1).tolist()]
        return (
            torch.stack(images) if images else torch.empty((0, *self.shape[1:]), dtype=self.dtype)
        )

    def facts(self) -> str:
        """Return what tells these images from others: how they are read, and each file's state."""
        files = [(Path(self.root) / name).stat() for name in self.names]
        return repr((self, [(file.st_size, file.st_mtime_ns) for file in files]))

    def _decoded(self, name: str) -> Tensor:
        path = str(Path(self.root) / name)
        with open_image(path) as image:
            if image.mode.startswith(("I", "F")):  # what is above 255 would all be white
                raise FedtailError(
                    f"{path} has pixels of more than 8 bits, and images are read as bytes: save it "
                    "with 8 bits, or give arrays of numbers (npz)"
                )
            try:
                pixels = image.convert(self.mode)
            except (
                OSError,
                SyntaxError,
            ) as error:  # begins well, and is cut or damaged
                raise FedtailError(f"{path} is not an image that can be read") from error
            return as_bytes(_cut(pixels, self.resize, self.size, path))


def open_image(path: str | Path) -> Image.Image:
    """Open an image file, or say which one cannot be."""
    try:
        return Image.open(path)
    except FileNotFoundError as error:
        raise FedtailError(f"there is no image {path}") from error
    except (UnidentifiedImageError, OSError) as error:
        raise FedtailError(f"{path} is not an image that can be read") from error


def as_bytes(image: Image.Image) -> Tensor:
    """Return an image as uint8 (channels, height, width)."""
    pixels = torch.from_numpy(np.array(image, np.uint8))
    return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1)


def _cut(image: Image.Image, resize: int, size: tuple[int, int], path: str) -> Image.Image:
    if resize:
        width, height = image.size
        ratio = resize / min(width, height)
        image = image.resize(
            (max(resize, round(width * ratio)), max(resize, round(height * ratio))),
            Image.Resampling.BILINEAR,
        )
    width, height = image.size
    if not resize and (height, width) != size:
        raise FedtailError(
            f"{path} is {width}x{height} pixels where others are {size[1]}x{size[0]}; "
            "give 'size' to bring all to one size"
        )
    left, top = (width - size[1]) // 2, (height - size[0]) // 2
    return image.crop((left, top, left + size[1], top + size[0]))
