"""One random change for a whole batch of images: the augmentation of CReFF's class gradients.

After Zhao, Bilen, "Dataset Condensation with Differentiable Siamese Augmentation", ICML 2021. Each
call draws one of six changes and its strength, the same for every image. Where CReFF uses it nobody
differentiates in the images, so plain tensor operations do.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

CHANGES = ("colour", "crop", "cutout", "flip", "scale", "rotate")
LARGEST_SCALE, DEGREES, CROP, CUTOUT = 1.2, 15.0, 0.125, 0.5
BRIGHTNESS, SATURATION, CONTRAST = 1.0, 2.0, 0.5


def one_change(x: Tensor, generator: torch.Generator, change: str | None = None) -> Tensor:
    """Return the batch under one change of `CHANGES`, drawn if not given; no images, no change."""
    if x.ndim != 4:
        return x
    # All numbers are drawn, used or not, so that the stream does not depend on the change.
    pick = int(torch.randint(len(CHANGES), (), generator=generator))
    u, v, t = torch.rand(3, generator=generator).tolist()
    change = CHANGES[pick] if change is None else change
    if change == "colour":
        return _colour(x, u, v, t)
    if change == "cutout":
        return _cutout(x, u, v)
    if change == "flip":
        return x.flip(-1) if u < 0.5 else x
    if change == "crop":
        return _affine(x, 1, 0, 0, 1, _shift(u, x.shape[-1]), _shift(v, x.shape[-2]))
    if change == "scale":
        low = 1 / LARGEST_SCALE
        return _affine(x, low + u * (LARGEST_SCALE - low), 0, 0, low + v * (LARGEST_SCALE - low))
    angle = math.radians((2 * u - 1) * DEGREES)
    return _affine(x, math.cos(angle), -math.sin(angle), math.sin(angle), math.cos(angle))


def _colour(x: Tensor, u: float, v: float, t: float) -> Tensor:
    """Brightness, then saturation, then contrast."""
    x = x + (u - 0.5) * BRIGHTNESS
    grey = x.mean(dim=1, keepdim=True)
    x = (x - grey) * (v * SATURATION) + grey
    mean = x.mean(dim=(1, 2, 3), keepdim=True)
    return (x - mean) * (t + CONTRAST) + mean


def _cutout(x: Tensor, u: float, v: float) -> Tensor:
    """Set a rectangle of half the sides, around a random centre, to zero."""
    x = x.clone()
    spans = []
    for share, size in ((u, x.shape[-2]), (v, x.shape[-1])):
        side = int(size * CUTOUT + 0.5)
        start = int(share * (size + (1 - side % 2))) - side // 2
        spans.append(slice(max(0, start), max(0, start + side)))
    x[..., spans[0], spans[1]] = 0
    return x


def _shift(share: float, size: int) -> float:
    """Return a whole number of pixels up to an eighth of the side, in units of half the side."""
    most = int(size * CROP + 0.5)
    return 2 * (int(share * (2 * most + 1)) - most) / size


def _affine(
    x: Tensor, a: float, b: float, c: float, d: float, right: float = 0.0, down: float = 0.0
) -> Tensor:
    """Look up each image at an affine image of its grid; outside is zero."""
    theta = x.new_tensor([[a, b, right], [c, d, down]]).expand(len(x), 2, 3)
    grid = affine_grid(theta, list(x.shape), align_corners=False)
    return grid_sample(x, grid, align_corners=False)
