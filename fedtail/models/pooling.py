"""Pooling that is fast where images are not channels last."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class HalvingMax(nn.Module):
    """The largest of each 2×2 pixels, as by `nn.MaxPool2d(2)`, and there twice as fast.

    *There*: on CPUs, for images that are not channels last. A gradient goes to one of the largest;
    which one, where they are equal, need not be PyTorch's choice.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Halve the last two dimensions; an odd row or column at the end is left out."""
        if not x.is_cpu:
            return functional.max_pool2d(x, 2)
        x = x[..., : x.shape[-2] // 2 * 2, : x.shape[-1] // 2 * 2]
        if torch.is_grad_enabled():
            return Halved.apply(x)  # type: ignore[no-any-return, no-untyped-call]  # torch's stub
        return _columns(_rows(x))


class Halved(torch.autograd.Function):
    """The largest of each 2×2 pixels, with a gradient of few passes over memory."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        """Return the largest."""
        return _columns(_rows(x))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        """Keep the input."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Give each gradient to the larger column, and there to the larger row."""
        (x,) = ctx.saved_tensors
        rows = _rows(x)
        of_rows, of_x = torch.empty_like(rows), torch.empty_like(x)
        left = gradient * (rows[..., ::2] >= rows[..., 1::2])
        of_rows[..., ::2], of_rows[..., 1::2] = left, gradient - left
        top = of_rows * (x[..., ::2, :] >= x[..., 1::2, :])
        of_x[..., ::2, :], of_x[..., 1::2, :] = top, of_rows - top
        return of_x

    @staticmethod
    def vmap(info: Any, dims: tuple[int], x: Tensor) -> tuple[Tensor, int]:
        """Do many at once: all before the last two dimensions are alike."""
        return Halved.apply(x.movedim(dims[0], 0)), 0  # type: ignore[no-untyped-call]


def _rows(x: Tensor) -> Tensor:
    return torch.maximum(x[..., ::2, :], x[..., 1::2, :])


def _columns(x: Tensor) -> Tensor:
    return torch.maximum(x[..., ::2], x[..., 1::2])
