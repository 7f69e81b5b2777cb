"""A model from whatever the user has."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedtail.errors import FedtailError
from fedtail.models import DigitsCNN, ResNet8, SplitModel, build

SHAPE = (1, 8, 8)


def net(num_classes: int = 10) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, num_classes))


class HeadFirst(nn.Module):
    """The classifier is registered first and an unused layer last."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 10)
        self.body = nn.Linear(64, 16)
        self.auxiliary = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x.flatten(1)).relu())
        return logits


@pytest.mark.parametrize(
    "model",
    [
        "digits_cnn",
        {"name": "mlp", "hidden": (5,)},
        DigitsCNN(),
        DigitsCNN,
        net(),
        net,
        functools.partial(net),
        HeadFirst,
        SplitModel(net()),
        lambda: SplitModel(net(), "3"),
        lambda input_shape, num_classes: nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes)),
    ],
)
def test_every_kind_of_model(model: Any) -> None:
    built = build(model, SHAPE, 10)

    assert isinstance(built, SplitModel)
    assert built(torch.zeros(3, *SHAPE)).shape == (3, 10)


def test_fields_of_a_table() -> None:
    assert build({"name": "resnet8", "width": 4}, SHAPE, 10).feature_dim == 16
    assert build(ResNet8(width=4), SHAPE, 10).feature_dim == 16


def test_a_function_is_told_the_number_of_classes() -> None:
    assert build(net, SHAPE, 7).num_classes == 7


def test_the_classifier_is_the_last_linear_to_run() -> None:
    assert build(HeadFirst(), SHAPE, 10).classifier_name == "head"


def test_the_users_module_is_copied_with_its_weights() -> None:
    mine = net()
    before = {name: tensor.clone() for name, tensor in mine.state_dict().items()}
    built = build(mine, SHAPE, 10)
    assert all(torch.equal(before[name], tensor) for name, tensor in built.tensors().items())

    with torch.no_grad():
        for parameter in built.parameters():
            parameter.zero_()

    assert all(torch.equal(before[name], tensor) for name, tensor in mine.state_dict().items())


def test_building_draws_nothing_but_weights() -> None:
    torch.manual_seed(0)
    build(nn.Sequential(net(), nn.Dropout()).eval(), SHAPE, 10)
    after = torch.rand(1)
    torch.manual_seed(0)
    net()

    assert torch.equal(after, torch.rand(1))


def weight_normed() -> nn.Module:
    """Return what the older ``weight_norm`` makes: a weight that is computed, and has no copy."""
    layer = nn.Linear(64, 10)
    vars(layer)["normed"] = layer.weight * 2
    return layer


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("digit_cnn", "unknown model 'digit_cnn'; did you mean 'digits_cnn'"),
        ({"name": "resnet8", "width": 0}, r"'model\.width' = 0 is refused"),
        ({"name": "resnet8", "wide": 4}, r"unknown key '(model\.)?wide'"),
        (3, "not int"),
        (lambda: 3, "not int"),
        (lambda width: net(), "wants 'width': only input_shape, num_classes"),
        (net(3), r"\(2, 3\) where \(2, 10\)"),
        (nn.Sequential(net(), nn.Softmax(1)), "not the last operation"),
        (nn.Linear(3, 10), r"does not take a batch of shape \(2, 1, 8, 8\)"),
        (nn.Flatten(), "no nn.Linear"),
        (weight_normed(), "the network cannot be copied: Only Tensors"),
    ],
)
def test_what_does_not_fit_is_refused(model: Any, message: str) -> None:
    with pytest.raises(FedtailError, match=message):
        build(model, SHAPE, 10)
