"""Cosine and scaled classifiers, by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedtail.errors import FedtailError
from fedtail.models import CosineHead, ScaledHead, SplitModel, class_axis
from fedtail.models.heads import refuse_frozen


def test_cosine_head_by_hand() -> None:
    # h = (3, 4) has norm 5; class vectors (1, 0), (0, 2), (-3, -4): cosines 0.6, 0.8, -1.
    head = CosineHead(2, 3, scale=10)
    head.weight.data = torch.tensor([[1.0, 0.0, -3.0], [0.0, 2.0, -4.0]])

    logits = head(torch.tensor([[3.0, 4.0]]))

    assert torch.allclose(logits, torch.tensor([[6.0, 8.0, -10.0]]))
    assert torch.allclose(head(torch.tensor([[0.3, 0.4]])), logits)


def test_cosine_head_starts_on_the_unit_sphere_and_survives_zero_features() -> None:
    head = CosineHead(48, 100)
    features = torch.zeros(2, 48, requires_grad=True)
    head(features).sum().backward()

    assert head.weight.shape == (48, 100)
    assert torch.allclose(head.weight.norm(dim=0), torch.ones(100))
    assert head.scale == 30
    assert features.grad is not None
    assert torch.isfinite(features.grad).all()
    assert [name for name, _ in head.named_parameters()] == ["weight"]


def test_scaled_head_by_hand() -> None:
    # z = 2 · a · (w h): w h = (1·1 + 2·1, 3·1 + 4·1) = (3, 7), a = (1, 0.5).
    head = ScaledHead(2, 2, scale=2)
    head.weight.data = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    head.weight_scale.data = torch.tensor([1.0, 0.5])

    assert torch.equal(head(torch.ones(1, 2)), torch.tensor([[6.0, 7.0]]))


def test_scaled_head_keeps_its_scale_vector_frozen_and_in_the_checkpoint() -> None:
    torch.manual_seed(0)
    model = SplitModel(ScaledHead(512, 10))

    assert model.parameter_names() == {"weight"}
    assert model.names() == {"weight"}  # what is never trained is not sent
    assert torch.equal(model.whole(model.tensors())["weight_scale"], torch.ones(10))
    # Drawn from N(0, 2 / in_features).
    assert model.tensors()["weight"].std().item() == pytest.approx((2 / 512) ** 0.5, rel=0.05)


def test_class_axis() -> None:
    assert class_axis(CosineHead(2, 3)) == 1
    assert class_axis(ScaledHead(2, 3)) == 0
    assert class_axis(torch.nn.Linear(2, 3)) == 0


def test_a_frozen_part_is_refused_and_a_factor_that_is_frozen_on_purpose_is_not() -> None:
    linear = nn.Linear(2, 3)
    linear.bias.requires_grad_(False)
    with pytest.raises(FedtailError, match="the bias of the classifier is frozen"):
        refuse_frozen(linear)
    refuse_frozen(linear, ["weight"])
    refuse_frozen(nn.Linear(2, 3, bias=False))
    refuse_frozen(ScaledHead(2, 3))
