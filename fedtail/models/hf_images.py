"""Images as a pretrained network takes them: its size, its mean and deviation.

All of it comes from the ``preprocessor_config.json`` of the model. Images are resized inside the
network (`Resized`), as a part of its forward pass: data sets stay as small as they are, and
whatever runs the network, an exported file too, takes raw images.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from fedtail.errors import FedtailError

MODES = {0: "nearest", 2: "bilinear", 3: "bicubic"}
"""How images are resized, by Pillow's numbers."""
UNCUT = 384
"""ConvNeXt resizes to more than it cuts out only below this size."""

Pixels = tuple[int, int]


@dataclass(frozen=True)
class Preprocessing:
    """What is done to an image, as numbers.

    Attributes
    ----------
    shorter
        Bring the shorter side to this and keep the ratio; 0: see `resize`.
    resize
        Height and width that images are brought to; nothing: they stay.
    crop
        Height and width that are cut from the centre then.
    mode
        The interpolation.
    mean, std
        Of values in 0..1.
    """

    shorter: int = 0
    resize: Pixels | None = None
    crop: Pixels | None = None
    mode: str = "bilinear"
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    @classmethod
    def of(cls, plain: Mapping[str, Any], channels: int, side: Pixels | None) -> Preprocessing:
        """Read a ``preprocessor_config.json``.

        Parameters
        ----------
        plain
            What it holds; empty if there is none.
        channels, side
            Of the images that the network's configuration speaks of.
        """
        factor = plain.get("rescale_factor", 1 / 255) if plain.get("do_rescale", True) else 1.0
        unit = 255 * factor  # what a byte of 255 becomes
        offset = 1.0 if plain.get("rescale_offset") else 0.0
        on = plain.get("do_normalize", bool(plain))
        mean = _channels(plain.get("image_mean", 0.5), channels) if on else (0.0,) * channels
        std = _channels(plain.get("image_std", 0.5), channels) if on else (1.0,) * channels
        shorter, resize, crop = _geometry(plain, side)
        return cls(
            shorter,
            resize,
            crop,
            MODES.get(plain.get("resample", 2), "bilinear"),
            tuple((m + offset) / unit for m in mean),
            tuple(s / unit for s in std),
        )


class Resized:
    """Before a network runs: images of its channels and its size. A hook that can be copied."""

    def __init__(self, how: Preprocessing) -> None:
        self.how = how

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments of the network with other images."""
        return (self.resized(args[0]), *args[1:])

    def resized(self, x: Tensor) -> Tensor:
        """Return a batch of normalised images in the size of the network."""
        channels = len(self.how.mean)
        if x.shape[1] == 1 and channels > 1:  # grey
            x = x.expand(-1, channels, -1, -1)
        height, width = int(x.shape[-2]), int(x.shape[-1])
        wanted = self.how.resize or (height, width)
        if self.how.shorter:
            ratio = self.how.shorter / min(height, width)
            wanted = (round(height * ratio), round(width * ratio))
        if wanted != (height, width):
            # Pillow's filters: only what shrinks is smoothed, and torch's other cubic is sharper.
            shrinks = wanted[0] < height or wanted[1] < width
            smooth = self.how.mode == "bicubic" or (self.how.mode != "nearest" and shrinks)
            x = F.interpolate(x, wanted, mode=self.how.mode, antialias=smooth)
        return x if self.how.crop is None else _centre(x, self.how.crop)


def _geometry(
    plain: Mapping[str, Any], side: Pixels | None
) -> tuple[int, Pixels | None, Pixels | None]:
    """Return the shorter side, or height and width, and what is cut out."""
    size = plain.get("size", {"height": side[0], "width": side[1]} if side else None)
    if isinstance(size, int):  # an older form
        crops = plain.get("do_center_crop", False)
        size = {"shortest_edge": size} if crops else {"height": size, "width": size}
    crop = plain.get("crop_size") if plain.get("do_center_crop") else None
    if isinstance(crop, int):
        crop = {"height": crop, "width": crop}
    cut = (int(crop["height"]), int(crop["width"])) if crop else None
    if not plain.get("do_resize", True) or not size:
        return 0, None, cut
    if "shortest_edge" not in size:
        try:
            return 0, (int(size["height"]), int(size["width"])), cut
        except KeyError:
            raise FedtailError(f"the model's image size {size} is of a kind not known") from None
    edge = int(size["shortest_edge"])
    if "crop_pct" in plain:  # ConvNeXt
        if edge >= UNCUT:
            return 0, (edge, edge), None
        return int(edge / (plain["crop_pct"] or 1.0)), None, (edge, edge)
    return edge, None, cut


def _channels(value: Any, channels: int) -> tuple[float, ...]:
    numbers = value if isinstance(value, list | tuple) else [value] * channels
    return tuple(float(number) for number in numbers)


def _centre(x: Tensor, size: Pixels) -> Tensor:
    top, left = (int(x.shape[-2]) - size[0]) // 2, (int(x.shape[-1]) - size[1]) // 2
    if min(top, left) < 0:
        raise FedtailError(
            f"an image of {tuple(x.shape[-2:])} pixels is smaller than the {size} of the network"
        )
    return x[..., top : top + size[0], left : left + size[1]]
