"""Class gradients against autograd and against numbers made by hand."""

from __future__ import annotations

import pytest
import tiny
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedtail.data.federation import Federation
from fedtail.errors import FedtailError
from fedtail.models import SplitModel
from fedtail.models.heads import CosineHead, ScaledHead
from fedtail.training import class_gradients


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def identity(classes: int = 2, width: int = 2, bias: bool = True) -> SplitModel:
    """Features are the inputs themselves, and the head is zero."""
    head = nn.Linear(width, classes, bias=bias)
    nn.init.zeros_(head.weight)
    if bias:
        nn.init.zeros_(head.bias)
    return SplitModel(nn.Sequential(nn.Identity(), head))


DATA = tiny.federation([[1.0, 0.0], [0.0, 2.0], [4.0, 4.0]], [0, 0, 1], [[0, 1, 2], [0], []])


def test_by_hand() -> None:
    # p = (1/2, 1/2) everywhere. Class 0: residual (-1/2, 1/2), mean feature (1/2, 1), so
    # W: [[-1/4, -1/2], [1/4, 1/2]]; class 1: residual (1/2, -1/2), feature (4, 4).
    model = identity()
    classes, weight, bias = class_gradients(model, model.classifier, DATA.client(0), 2)
    assert classes.tolist() == [0, 1]
    assert weight.tolist() == [[[-0.25, -0.5], [0.25, 0.5]], [[2.0, 2.0], [-2.0, -2.0]]]
    assert bias is not None
    assert bias.tolist() == [[-0.5, 0.5], [0.5, -0.5]]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch_size", [4, 500])
def test_equals_autograd(bias: bool, batch_size: int) -> None:
    # Prepare: five classes of which the client holds 0, 2 and 4; BatchNorm and dropout in eval.
    x, y = drawn(30, 6), [0, 2, 4, 4, 2] * 6
    data = tiny.federation(x.tolist(), y, [list(range(30))], classes=5).client(0)
    body = [nn.Linear(6, 7), nn.BatchNorm1d(7), nn.Dropout(0.5), nn.Linear(7, 5, bias=bias)]
    model = SplitModel(nn.Sequential(*body))
    statistics = model.module.get_buffer("1.running_mean")
    statistics.copy_(drawn(7, seed=1))
    before = model.tensors()

    # Execute
    classes, weight, b = class_gradients(model, model.classifier, data, 5, batch_size=batch_size)

    # Assert
    assert classes.tolist() == [0, 2, 4]
    assert model.training
    assert all(torch.equal(before[name], t) for name, t in model.tensors().items())
    model.eval()
    for i, c in enumerate(classes):
        model.zero_grad()
        mine = data.labels == c
        torch.autograd.backward(functional.cross_entropy(model(x[mine]), data.labels[mine]))
        head = model.classifier
        assert isinstance(head, nn.Linear)
        assert torch.allclose(weight[i], torch.as_tensor(head.weight.grad), atol=1e-6)
        assert (b is None) == (not bias)
        if b is not None:
            assert torch.allclose(b[i], torch.as_tensor(head.bias.grad), atol=1e-6)


def test_another_head_on_the_same_features() -> None:
    # A head that is sure of class 1 (logits (0, 1000)): p = (0, 1), so class 1 asks for nothing.
    model, other = identity(), nn.Linear(2, 2)
    nn.init.zeros_(other.weight)
    with torch.no_grad():
        other.bias.copy_(torch.tensor([0.0, 1000.0]))
    _, weight, bias = class_gradients(model, other, DATA.client(0), 2)
    assert bias is not None
    assert weight[1].abs().max() == 0
    assert bias.tolist() == [[-1.0, 1.0], [0.0, 0.0]]


def test_one_sample_and_none() -> None:
    model = identity(bias=False)
    classes, weight, bias = class_gradients(model, model.classifier, DATA.client(1), 2)
    assert (classes.tolist(), weight.shape, bias) == ([0], (1, 2, 2), None)
    classes, weight, _ = class_gradients(model, model.classifier, DATA.client(2), 2)
    assert (classes.shape, classes.dtype, weight.shape) == ((0,), torch.int64, (0, 2, 2))


@pytest.mark.parametrize("head", [CosineHead(2, 2), ScaledHead(2, 2), nn.Identity()])
def test_only_linear_heads(head: nn.Module) -> None:
    with pytest.raises(FedtailError, match=f"linear classifier .*{type(head).__name__}"):
        class_gradients(identity(), head, DATA.client(0), 2)


def test_augmented_as_in_training() -> None:
    # Doubling every input doubles features, so at the zero head it doubles the weight's gradient.
    class Twice:
        def __call__(self, x: Tensor, generator: torch.Generator, constants: object) -> Tensor:
            return 2 * x

    model = identity()
    plain = class_gradients(model, model.classifier, DATA.client(0), 2)
    federation: Federation = tiny.federation(
        [[1.0, 0.0], [0.0, 2.0], [4.0, 4.0]], [0, 0, 1], [[0, 1, 2]]
    )
    object.__setattr__(federation, "augment", Twice())
    twice = class_gradients(
        model, model.classifier, federation.client(0), 2, generator=torch.Generator()
    )
    assert torch.equal(twice[1], 2 * plain[1])
