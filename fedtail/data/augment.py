"""Batches are normalised and augmented as tensors: one draw of numbers per image, seeded."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import pad

from fedtail.config import Config


class Augment(Config):
    """What is done to training images; nothing by default."""

    crop: int = Field(0, ge=0, description="pad by this many pixels, then cut at a random offset")
    flip: bool = Field(False, description="mirror left and right with probability one half")
    cutout: int = Field(
        0, ge=0, description="side of a square that is set to zero, at a random centre"
    )
    per_batch: bool = Field(
        False, description="one offset and one flip for the whole batch (as CReFF's code does)"
    )

    @property
    def changes(self) -> bool:
        """Whether anything is done."""
        return bool(self.crop or self.flip or self.cutout)

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return the augmented batch; numbers are drawn on the CPU so that devices agree."""
        if x.ndim != 4:
            return x
        n = 1 if self.per_batch else len(x)
        if self.crop:
            x = _crop(
                x, self.crop, torch.randint(0, 2 * self.crop + 1, (2, n), generator=generator)
            )
        if self.flip:
            mirrored = (torch.rand(n, generator=generator) < 0.5).to(x.device)
            x = torch.where(mirrored[:, None, None, None], x.flip(-1), x)
        if self.cutout:
            height, width = x.shape[-2:]
            rows = torch.randint(0, height, (len(x),), generator=generator)
            columns = torch.randint(0, width, (len(x),), generator=generator)
            x = x.masked_fill(_square(rows, columns, height, width, self.cutout).to(x.device), 0.0)
        return x


def normalised(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return float inputs: bytes become 0..1, then each channel is shifted and scaled."""
    return as_float(x).sub(mean).div_(std)


def as_float(x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return inputs as real numbers; bytes become 0..1."""
    return x.to(dtype).div_(255.0) if x.dtype == torch.uint8 else x.to(dtype)


def _crop(x: Tensor, margin: int, offsets: Tensor) -> Tensor:
    """Cut each image of the padded batch at its own (row, column) offset."""
    n, _, height, width = x.shape
    padded = pad(x, (margin,) * 4)
    offsets = offsets.to(x.device).expand(2, n)
    rows = offsets[0][:, None] + torch.arange(height, device=x.device)
    columns = offsets[1][:, None] + torch.arange(width, device=x.device)
    images = torch.arange(n, device=x.device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[images, rows[:, :, None], columns[:, None, :]].permute(
        0, 3, 1, 2
    )


def _square(rows: Tensor, columns: Tensor, height: int, width: int, side: int) -> Tensor:
    """Return the mask of a square of the given side around each centre, cut at the border."""
    half = side // 2
    y = torch.arange(height)[None, :] - rows[:, None]
    x = torch.arange(width)[None, :] - columns[:, None]
    inside_y = (y >= -half) & (y < side - half)
    inside_x = (x >= -half) & (x < side - half)
    return (inside_y[:, :, None] & inside_x[:, None, :])[:, None]
