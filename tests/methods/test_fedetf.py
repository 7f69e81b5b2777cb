"""FedETF: a fixed simplex of class vectors."""

from __future__ import annotations

import pytest
import tiny
import torch
from torch import nn

from fedtail import FedETF, FedtailError
from fedtail.models import CosineHead, SplitModel
from fedtail.protocol import Payload, grouped
from fedtail.training import LocalTraining


def two_classes() -> SplitModel:
    """Return features as they are, z = 10 M f, from the identity as projection."""
    model = FedETF().build_model(SplitModel(nn.Sequential(nn.Identity(), nn.Linear(2, 2))))
    with torch.no_grad():
        model.module.get_parameter("1.projection.weight").copy_(torch.eye(2))
        model.module.get_parameter("1.projection.bias").zero_()
    return model


DATA = tiny.federation(
    [[3.0, 4.0], [4.0, 3.0], [1.0, 0.0], [1.0, 0.0]], [0, 0, 0, 1], [[0, 1, 2], [3]]
)


def test_the_loss_by_hand() -> None:
    # Client 0 holds three samples of class 0 and none of class 1, which counts as one:
    # z = (-√2, √2) for (3, 4), so the loss is log(1 + (1/3) e^(2√2)) = 1.897829.
    method, model = FedETF(), two_classes()
    run = method.start(Payload(grouped("model", model.tensors())), tiny.client(DATA, 0, model))
    x, y = torch.tensor([[3.0, 4.0]]), torch.tensor([0])
    expected = torch.log1p(torch.tensor(2 * 2**0.5).exp() / 3)
    assert float(method.batch_loss(run, x, y).detach()) == pytest.approx(float(expected), rel=1e-5)
    masked = FedETF(absent="mask")
    run = masked.start(run.payload, run.client)
    assert float(masked.batch_loss(run, x, y).detach()) == 0.0


def test_equal_counts_are_plain_cross_entropy() -> None:
    model, x, y = two_classes(), torch.randn(5, 2), torch.tensor([0, 1, 1, 0, 1])
    data = tiny.federation([[1.0, 0.0], [0.0, 1.0]], [0, 1], [[0, 1]])
    client = tiny.client(data, 0, model)
    payload = Payload(grouped("model", model.tensors()))
    plain = FedETF.model_validate({"loss": "cross_entropy"})
    losses = [m.batch_loss(m.start(payload, client), x, y).detach() for m in (FedETF(), plain)]
    torch.testing.assert_close(losses[0], losses[1])


def test_one_step_moves_projection_and_scale_and_not_the_frame() -> None:
    method, model = FedETF(local=LocalTraining(lr=0.1)), two_classes()
    sent = method.train(
        Payload(grouped("model", model.tensors())), tiny.client(DATA, 0, model)
    ).tensors
    assert sent.keys() == {"model/1.scale", "model/1.projection.weight", "model/1.projection.bias"}
    assert float(sent["model/1.scale"]) != 10.0
    assert torch.equal(
        model.classifier.get_buffer("frame"), two_classes().classifier.get_buffer("frame")
    )


def test_a_scale_that_is_not_learned_is_not_sent() -> None:
    model = FedETF(learn_scale=False, scale=30).build_model(SplitModel(nn.Linear(2, 2)))
    assert model.names() == {"projection.weight", "projection.bias"}
    assert float(model.classifier.get_buffer("scale")) == 30.0


def test_another_classifier_is_refused() -> None:
    with pytest.raises(FedtailError, match="linear classifier"):
        FedETF().build_model(SplitModel(nn.Sequential(nn.Identity(), CosineHead(2, 2)), "1"))
