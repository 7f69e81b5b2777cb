"""Pooling of 2×2 pixels: PyTorch's values and gradients, at a fraction of its time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.functional import max_pool2d

from fedtail.models.pooling import HalvingMax


def images(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (1, 4, 7, 5), (2, 1, 2, 3), (0, 3, 8, 8)])
def test_values_and_gradients_are_those_of_max_pooling(shape: tuple[int, ...]) -> None:
    ours, theirs = images(*shape).requires_grad_(), images(*shape).requires_grad_()
    found, wanted = HalvingMax()(ours), max_pool2d(theirs, 2)
    above = images(*found.shape)

    of_ours, of_theirs = (
        torch.autograd.grad(y, x, above) for y, x in ((found, ours), (wanted, theirs))
    )

    assert torch.equal(found, wanted)
    assert torch.equal(*of_ours, *of_theirs)
    with torch.no_grad():
        assert torch.equal(HalvingMax()(ours), wanted)


def test_of_equal_pixels_one_has_the_gradient() -> None:
    x = torch.ones(1, 1, 2, 2, requires_grad=True)

    (found,) = torch.autograd.grad(HalvingMax()(x), x, torch.full((1, 1, 1, 1), 3.0))

    assert found.tolist() == [[[[3.0, 0.0], [0.0, 0.0]]]]


def test_under_vmap_it_is_the_same_for_each() -> None:
    def above(x: Tensor, y: Tensor) -> Tensor:
        pooled: Tensor = HalvingMax()(x)
        return (pooled * y).sum()

    x, y = images(4, 2, 3, 6, 5), images(4, 2, 3, 3, 2)

    together = vmap(grad(above))(x, y)

    alone = [grad(above)(each, one) for each, one in zip(x, y, strict=True)]
    assert torch.equal(together, torch.stack(alone))


def test_second_derivatives_are_numerically_right() -> None:
    x = images(1, 1, 4, 4).double().requires_grad_()

    assert torch.autograd.gradgradcheck(HalvingMax(), (x,))
    assert torch.autograd.gradcheck(HalvingMax(), (x,))
