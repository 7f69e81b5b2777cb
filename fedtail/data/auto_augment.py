"""AutoAugment for batches of tensors: the policy that was found for CIFAR-10.

Cubuk, Zoph, Mané, Vasudevan, Le, "AutoAugment: Learning Augmentation Strategies from Data",
CVPR 2019.

An image is given one of 25 pairs of changes, each of which is done with a probability of its own,
at a strength of its own. All numbers are drawn beforehand, five for an image; images with the same
pair are changed at once. Values are 0 to 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, conv2d, grid_sample

AUTO_DRAWS = 5
"""Numbers from 0 to 1 for an image: which pair, and of each change whether and in which sense."""
LEVELS = 255
GREY = (0.299, 0.587, 0.114)

Change = tuple[str, float, int]
POLICY: tuple[tuple[Change, Change], ...] = (
    (("invert", 0.1, 7), ("contrast", 0.2, 6)),
    (("rotate", 0.7, 2), ("translate_x", 0.3, 9)),
    (("sharpness", 0.8, 1), ("sharpness", 0.9, 3)),
    (("shear_y", 0.5, 8), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.5, 8), ("equalize", 0.9, 2)),
    (("shear_y", 0.2, 7), ("posterize", 0.3, 7)),
    (("colour", 0.4, 3), ("brightness", 0.6, 7)),
    (("sharpness", 0.3, 9), ("brightness", 0.7, 9)),
    (("equalize", 0.6, 5), ("equalize", 0.5, 1)),
    (("contrast", 0.6, 7), ("sharpness", 0.6, 5)),
    (("colour", 0.7, 7), ("translate_x", 0.5, 8)),
    (("equalize", 0.3, 7), ("autocontrast", 0.4, 8)),
    (("translate_y", 0.4, 3), ("sharpness", 0.2, 6)),
    (("brightness", 0.9, 6), ("colour", 0.2, 8)),
    (("solarize", 0.5, 2), ("invert", 0.0, 3)),
    (("equalize", 0.2, 0), ("autocontrast", 0.6, 0)),
    (("equalize", 0.2, 8), ("equalize", 0.6, 4)),
    (("colour", 0.9, 9), ("equalize", 0.6, 6)),
    (("autocontrast", 0.8, 4), ("solarize", 0.2, 8)),
    (("brightness", 0.1, 3), ("colour", 0.7, 0)),
    (("solarize", 0.4, 5), ("autocontrast", 0.9, 3)),
    (("translate_y", 0.9, 9), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.9, 2), ("solarize", 0.8, 3)),
    (("equalize", 0.8, 8), ("invert", 0.1, 3)),
    (("translate_y", 0.7, 9), ("autocontrast", 0.9, 1)),
)
"""The 25 pairs: change, probability, and strength in ninths of the largest."""


def auto_augmented(x: Tensor, draws: Tensor) -> Tensor:
    """Return images (n, channels, height, width), of 0 to 1, under what was drawn for each.

    Parameters
    ----------
    x
        The images.
    draws
        (5, n), from 0 to 1.
    """
    x, pairs = x.clone(), (draws[0] * len(POLICY)).long()
    for number in torch.unique(pairs).tolist():
        for place, (name, probability, level) in enumerate(POLICY[number]):
            chosen = (pairs == number) & (draws[1 + place] < probability)
            at = chosen.nonzero().flatten().to(x.device)
            if len(at):
                sign = torch.where(draws[3 + place][chosen] < 0.5, 1.0, -1.0).to(x.device)
                x[at] = CHANGES_BY_NAME[name](x[at], sign * level / 9).clamp(0, 1)
    return x


def affine(x: Tensor, theta: Tensor) -> Tensor:
    """Look up each image at an affine image (n, 2, 3) of its grid; outside is zero."""
    grid = affine_grid(theta.to(x.dtype), list(x.shape), align_corners=False)
    return grid_sample(x, grid, align_corners=False)


def rotated(x: Tensor, degrees: Tensor) -> Tensor:
    """Return each image turned around its centre, counter-clockwise."""
    angle = degrees * math.pi / 180
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    ratio = x.shape[-2] / x.shape[-1]
    rows = ((cos, -sin * ratio, zero), (sin / ratio, cos, zero))
    return affine(x, torch.stack([torch.stack(row, -1) for row in rows], 1).to(x.device))


# Each change is given images, and of each how strong: from -1 to 1.


def _sheared(x: Tensor, m: Tensor, axis: int) -> Tensor:
    theta = torch.eye(2, 3, device=x.device).repeat(len(x), 1, 1)
    theta[:, axis, 1 - axis] = 0.3 * m
    return affine(x, theta)


def _moved(x: Tensor, m: Tensor, axis: int) -> Tensor:
    theta = torch.eye(2, 3, device=x.device).repeat(len(x), 1, 1)
    theta[:, axis, 2] = 2 * 150 / 331 * m  # of the side, which is 2 long
    return affine(x, theta)


def _between(x: Tensor, other: Tensor, m: Tensor) -> Tensor:
    """Return other + (1 + 0.9 m) (x − other)."""
    return other + (1 + 0.9 * m)[:, None, None, None] * (x - other)


def _grey(x: Tensor) -> Tensor:
    if x.shape[1] != len(GREY):
        return x.mean(dim=1, keepdim=True)
    return (x * x.new_tensor(GREY)[None, :, None, None]).sum(dim=1, keepdim=True)


def _contrast(x: Tensor, m: Tensor) -> Tensor:
    return _between(x, _grey(x).mean(dim=(1, 2, 3), keepdim=True), m)


def _sharpness(x: Tensor, m: Tensor) -> Tensor:
    kernel = x.new_ones(3, 3)
    kernel[1, 1] = 5
    channels = x.shape[1]
    smooth = x.clone()
    if min(x.shape[-2:]) > 2:  # the border stays as it is
        weight = (kernel / kernel.sum()).expand(channels, 1, 3, 3)
        smooth[..., 1:-1, 1:-1] = conv2d(x, weight, groups=channels)
    return _between(x, smooth, m)


def _autocontrast(x: Tensor, m: Tensor) -> Tensor:
    low, high = x.amin(dim=(2, 3), keepdim=True), x.amax(dim=(2, 3), keepdim=True)
    return torch.where(high > low, (x - low) / (high - low).clamp(min=1e-6), x)


def _equalize(x: Tensor, m: Tensor) -> Tensor:
    """Spread the values of each channel evenly, as histograms of 256 levels say."""
    whole = (x * LEVELS).round().long().flatten(2).flatten(0, 1)
    rows = len(whole)
    place = torch.arange(rows, device=x.device)[:, None] * (LEVELS + 1)
    counts = torch.bincount((whole + place).flatten(), minlength=rows * (LEVELS + 1))
    counts = counts.view(rows, LEVELS + 1)
    last = counts.gather(1, whole.amax(dim=1, keepdim=True))
    step = (counts.sum(dim=1, keepdim=True) - last) // LEVELS
    table = (counts.cumsum(dim=1) - counts + step // 2) // step.clamp(min=1)
    found = table.clamp(max=LEVELS).gather(1, whole).view(x.shape).to(x.dtype) / LEVELS
    return torch.where((step > 0).view(*x.shape[:2], 1, 1), found, x)


def _posterize(x: Tensor, m: Tensor) -> Tensor:
    """Keep the first 8 to 4 bits."""
    size = 2.0 ** (m.abs() * 9 / (9 / 4)).round()[:, None, None, None]
    return ((x * LEVELS).round() / size).floor() * size / LEVELS


def _solarize(x: Tensor, m: Tensor) -> Tensor:
    return torch.where(x >= (1 - m.abs())[:, None, None, None], 1 - x, x)


CHANGES_BY_NAME: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "shear_y": lambda x, m: _sheared(x, m, 1),
    "translate_x": lambda x, m: _moved(x, m, 0),
    "translate_y": lambda x, m: _moved(x, m, 1),
    "rotate": lambda x, m: rotated(x, 30 * m),
    "brightness": lambda x, m: _between(x, torch.zeros_like(x), m),
    "colour": lambda x, m: _between(x, _grey(x), m),
    "contrast": _contrast,
    "sharpness": _sharpness,
    "autocontrast": _autocontrast,
    "equalize": _equalize,
    "posterize": _posterize,
    "solarize": _solarize,
    "invert": lambda x, m: 1 - x,
}
