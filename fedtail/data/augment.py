"""Batches are normalised and augmented as tensors: one draw of numbers per image, seeded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import pad

from fedtail.config import Config
from fedtail.data.auto_augment import AUTO_DRAWS, auto_augmented, rotated

NormalConstants = tuple[Tensor, Tensor]
"""Mean and standard deviation that inputs are normalised with, in a shape that goes with them."""


class Augment(Config):
    """What is done to training images; nothing by default."""

    crop: int = Field(0, ge=0, description="pad by this many pixels, then cut at a random offset")
    flip: bool = Field(False, description="mirror left and right with probability one half")
    cutout: int = Field(
        0, ge=0, description="side of a square that is set to zero, at a random centre"
    )
    rotate: float = Field(
        0.0, ge=0, le=180, description="turn by an angle of up to so many degrees, either way"
    )
    auto: bool = Field(False, description="AutoAugment, by the policy found for CIFAR-10")
    per_batch: bool = Field(
        False, description="one offset and one flip for the whole batch (as CReFF's code does)"
    )

    @property
    def on(self) -> bool:
        """Whether anything is done."""
        return bool(self.crop or self.flip or self.cutout or self.rotate or self.auto)

    def __call__(
        self, x: Tensor, generator: torch.Generator, constants: NormalConstants | None = None
    ) -> Tensor:
        """Return the augmented batch.

        Parameters
        ----------
        x, generator
            The batch, and where draws come from.
        constants
            What it was normalised with: AutoAugment sees images as they were.
        """
        if x.ndim != 4:
            return x
        return self.changed(x, self.draws(len(x), x.shape[-2:], generator), constants)

    def draws(self, n: int, size: Sequence[int], generator: torch.Generator) -> Draws:
        """Return the random numbers of n images, drawn on the CPU so that devices agree."""
        each = 1 if self.per_batch else n
        offsets = mirrored = centres = angles = policy = None
        if self.crop:
            offsets = torch.randint(0, 2 * self.crop + 1, (2, each), generator=generator)
            offsets = offsets.expand(2, n)
        if self.flip:
            mirrored = (torch.rand(each, generator=generator) < 0.5).expand(n)
        if self.cutout:
            rows = torch.randint(0, size[0], (n,), generator=generator)
            centres = torch.stack([rows, torch.randint(0, size[1], (n,), generator=generator)])
        if self.rotate:
            angles = (2 * torch.rand(n, generator=generator) - 1) * self.rotate
        if self.auto:
            policy = torch.rand(AUTO_DRAWS, n, generator=generator)
        return Draws(offsets, mirrored, centres, angles, policy)

    def changed(self, x: Tensor, draws: Draws, constants: NormalConstants | None = None) -> Tensor:
        """Return images under what was drawn for them."""
        if draws.offsets is not None:
            x = _crop(x, self.crop, draws.offsets)
        if draws.mirrored is not None:
            x = torch.where(draws.mirrored.to(x.device)[:, None, None, None], x.flip(-1), x)
        if draws.angles is not None:
            x = rotated(x, draws.angles.to(x.device))
        if draws.policy is not None:
            x = _auto(x, draws.policy, constants)
        if draws.centres is not None:
            square = _square(draws.centres[0], draws.centres[1], x.shape[-2:], self.cutout)
            x = x.masked_fill(square.to(x.device), 0.0)
        return x


class Draws(NamedTuple):
    """What was drawn for each image of a batch, or nothing where nothing is done.

    Attributes
    ----------
    offsets
        (2, n), row and column at which the padded image is cut.
    mirrored
        (n,), whether left and right change places.
    centres
        (2, n), row and column of the centre of the square that is set to zero.
    angles
        (n,), degrees by which the image is turned.
    policy
        (5, n), what AutoAugment does.
    """

    offsets: Tensor | None
    mirrored: Tensor | None
    centres: Tensor | None
    angles: Tensor | None = None
    policy: Tensor | None = None


def joined(draws: Sequence[Draws]) -> Draws:
    """Return what was drawn for several batches, as for one after the other."""
    parts = zip(*draws, strict=True)
    return Draws(*(None if part[0] is None else torch.cat(part, dim=-1) for part in parts))


def normalised(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return float inputs: bytes become 0..1, then each channel is shifted and scaled."""
    return as_float(x).sub(mean).div_(std)


def channel_axis(shape: Sequence[int]) -> int:
    """Return which axis of a batch holds channels or features: the last of (length, channels)."""
    return 2 if len(shape) == 2 else 1


def per_channel(numbers: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a number a channel, or one for all, as a batch of inputs of a shape takes them."""
    sizes = [1] * (len(shape) + 1)
    sizes[channel_axis(shape)] = -1
    return numbers.reshape(sizes)


def as_float(x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return inputs as real numbers; bytes become 0..1."""
    return x.to(dtype).div_(255.0) if x.dtype == torch.uint8 else x.to(dtype)


def _crop(x: Tensor, margin: int, offsets: Tensor) -> Tensor:
    """Cut each image of the padded batch at its own (row, column) offset."""
    n, _, height, width = x.shape
    padded = pad(x, (margin,) * 4)
    offsets = offsets.to(x.device)
    rows = offsets[0][:, None] + torch.arange(height, device=x.device)
    columns = offsets[1][:, None] + torch.arange(width, device=x.device)
    images = torch.arange(n, device=x.device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[images, rows[:, :, None], columns[:, None, :]].permute(
        0, 3, 1, 2
    )


def _square(rows: Tensor, columns: Tensor, size: Sequence[int], side: int) -> Tensor:
    """Return the mask of a square of the given side around each centre, cut at the border."""
    half = side // 2
    y = torch.arange(size[0])[None, :] - rows[:, None]
    x = torch.arange(size[1])[None, :] - columns[:, None]
    inside_y = (y >= -half) & (y < side - half)
    inside_x = (x >= -half) & (x < side - half)
    return (inside_y[:, :, None] & inside_x[:, None, :])[:, None]


def _auto(x: Tensor, policy: Tensor, constants: NormalConstants | None) -> Tensor:
    """Do AutoAugment to images as they were before normalisation, brought to 0..1."""
    mean, std = (0.0, 1.0) if constants is None else constants
    raw = x * std + mean
    # Bytes count 0 to 1; numbers of somebody's own may go further.
    low = raw.amin(dim=(1, 2, 3), keepdim=True).clamp(max=0.0)
    span = raw.amax(dim=(1, 2, 3), keepdim=True).clamp(min=1.0) - low
    return (auto_augmented((raw - low) / span, policy) * span + low - mean) / std
