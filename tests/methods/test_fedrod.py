"""FedRoD: a balanced generic head, and a head of each client's own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import nn

from fedtail import BSM, Arrays, Experiment, FedRoD, FedtailError, run
from fedtail.models import CosineHead, SplitModel
from fedtail.protocol import Payload, grouped
from fedtail.training import LocalTraining


def zeros(bias: bool = True) -> SplitModel:
    """Return softmax regression from zero."""
    layer = nn.Linear(1, 2, bias=bias)
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return SplitModel(nn.Sequential(nn.Identity(), layer))


DATA = tiny.federation([[1.0], [1.0], [1.0], [1.0]], [0, 0, 0, 1], [[0, 1, 3], [2]])


def sent_to(model: SplitModel) -> Payload:
    """Return what a client of a generic model is sent."""
    return Payload(grouped("model", model.tensors()), {"head": "1."})


def test_one_step_of_both_heads_by_hand() -> None:
    # Two samples of class 0, one of class 1, x = 1, from zero, rate 1, one batch.
    # Generic: softmax(log (2, 1)) = (2/3, 1/3) on all, which is right on average: no step at all.
    # Own: softmax (1/2, 1/2) against (2/3, 1/3): a step of (1/6, -1/6).
    method = FedRoD(local=LocalTraining(lr=1.0))
    model = method.build_model(zeros())
    client = tiny.client(DATA, 0, model)
    sent = method.train(sent_to(zeros()), client).tensors
    assert sent.keys() == {"model/1.weight", "model/1.bias"}
    assert torch.allclose(sent["model/1.weight"], torch.zeros(2, 1), atol=1e-7)
    step = torch.tensor([1 / 6, -1 / 6])
    torch.testing.assert_close(client.state["own/personal.weight"].flatten(), step)
    torch.testing.assert_close(client.state["own/personal.bias"], step)
    # Its own model has both: sigmoid(4/6) of class 0.
    own = method.own_model(sent_to(zeros()), client).group("model")
    z = own["1.weight"].flatten() + own["1.bias"]
    assert float(z.softmax(0)[0]) == pytest.approx(1 / (1 + math.exp(-2 / 3)), rel=1e-5)


def test_who_never_trained_uses_the_generic_model() -> None:
    method = FedRoD()
    model = method.build_model(zeros(bias=False))
    generic = zeros(bias=False)
    nn.init.constant_(generic.classifier.get_parameter("weight"), 3.0)
    own = method.own_model(sent_to(generic), tiny.client(DATA, 1, model)).group("model")
    assert own.keys() == {"1.weight"}
    assert torch.equal(own["1.weight"], torch.full((2, 1), 3.0))


@pytest.mark.parametrize("model", [tiny.plain_model, tiny.norm_model, tiny.dropout_model])
@pytest.mark.parametrize("heads", [True, False])
def test_the_generic_model_is_bsm_to_the_bit(model: Any, heads: bool) -> None:
    local = tiny.quick(momentum=0.9, weight_decay=0.01)
    found = run(tiny.experiment(FedRoD(local=local, personal_heads=heads), model))
    plain = run(tiny.experiment(BSM(local=local), model))
    assert found.digest == plain.digest
    assert ("personal" in found.history[-1]) == heads
    # Beside the model, the name of the classifier: one digit and a dot, to each of four.
    more = {
        a["bytes_down"] - b["bytes_down"] for a, b in zip(found.history, plain.history, strict=True)
    }
    assert more == {4 * 2 if heads else 0}
    assert [a["bytes_up"] for a in found.history] == [b["bytes_up"] for b in plain.history]


def test_the_private_loss_does_not_reach_the_body() -> None:
    # All gradients of the body are those without the private term, which is far from zero.
    gradients = []
    for heads in (True, False):
        method = FedRoD(personal_heads=heads)
        torch.manual_seed(0)
        base = SplitModel(nn.Sequential(nn.Linear(1, 3), nn.ReLU(), nn.Linear(3, 2)))
        model = method.build_model(base)
        payload = Payload(grouped("model", base.tensors()), {"head": "2."})
        local = method.start(payload, tiny.client(DATA, 0, model))
        torch.autograd.backward(
            method.batch_loss(local, torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1]))
        )
        gradients.append([p.grad for p in model.module.parameters()])
        if heads:
            own = model.extra_heads["personal"].get_parameter("weight").grad
            assert own is not None
            assert float(own.norm()) > 0.01
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)


def test_own_heads_are_tested_on_own_samples_and_help_there() -> None:
    # Two clients with one feature that says nothing: 0 holds class 0 three times of four, client 1
    # class 1. The generic head cannot tell; each own head learns its client's share.
    y = np.array([0, 0, 0, 1, 1, 1, 1, 0])
    owner = np.repeat([0, 1], 4)
    x = np.ones((8, 1), np.float32)
    data = Arrays(x, y, x, y, client_train=owner, client_test=owner, normalisation="none")
    method = FedRoD(local=LocalTraining(lr=0.5, epochs=5))
    result = run(
        Experiment(
            data=data,
            model=lambda: nn.Linear(1, 2),
            method=method,
            partition="natural",
            rounds=5,
            device="cpu",
        )
    )
    personal = result.history[-1]["personal"]
    assert personal["tested_on"] == "own samples"
    assert personal["mean"]["accuracy"] == 0.75
    assert result.history[-1]["accuracy"] == 0.5


def test_another_classifier_is_refused() -> None:
    with pytest.raises(FedtailError, match="linear classifier"):
        FedRoD().build_model(SplitModel(nn.Sequential(nn.Identity(), CosineHead(2, 2)), "1"))
