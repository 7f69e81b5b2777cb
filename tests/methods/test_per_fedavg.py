"""Per-FedAvg: a meta-step by hand, the cases in which it is FedAvg, and the clients' own models."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import nn

from fedtail import Arrays, Experiment, FedAvg, LocalTraining, PerFedAvg, run
from fedtail.models import SplitModel
from fedtail.protocol import Payload, grouped

# One client, one sample x = 1 of class 0, so that both batches are this sample.
DATA = tiny.federation([[1.0]], [0], [[0]])


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


def linear() -> SplitModel:
    """Return softmax regression without bias, starting from zero."""
    model = SplitModel(nn.Sequential(nn.Linear(1, 2, bias=False)))
    nn.init.zeros_(model.module.get_parameter("0.weight"))
    return model


def trained(method: PerFedAvg, model: SplitModel | None = None) -> list[float]:
    model = linear() if model is None else model
    reply = method.train(Payload(grouped("model", model.tensors())), tiny.client(DATA, 0, model))
    assert reply.scalars["steps"] == method.meta_steps
    return reply.tensors["model/0.weight"].flatten().tolist()


def test_two_meta_steps_by_hand() -> None:
    # The weights stay (a, -a); the gradient is (s(2a) - 1, 1 - s(2a)), s the sigmoid. α = 2, β = 1.
    # Step 1, a = 0: inner a' = 0 + 2 · 1/2 = 1; gradient at a': s(2) - 1 = -0.119203, applied at
    # a = 0: a = 0.119203. (Applied at a' it would be 1.119203.)
    # Step 2: inner a' = a + 2 (1 - s(2a)) = 0.119203 + 2 · 0.440680 = 1.000563; gradient
    # s(2.001127) - 1 = -0.119085: a = 0.238288.
    method = PerFedAvg(meta_steps=1, inner_lr=2.0, local=LocalTraining(lr=1.0))
    assert trained(method) == pytest.approx([0.119203, -0.119203], abs=1e-6)
    a = 1 - sigmoid(2)
    inner = a + 2 * (1 - sigmoid(2 * a))
    again = a + 1 - sigmoid(2 * inner)
    assert again == pytest.approx(0.238288, abs=1e-6)
    assert trained(method.but(meta_steps=2)) == pytest.approx([again, -again], abs=1e-6)


def test_the_gradient_is_of_the_second_batch_at_the_point_after_the_first() -> None:
    # Two samples of other classes with x = 1, batches of one: a meta-step has one of each. α = 2,
    # β = 1, a = 0. If class 0 comes first: a' = 1; the gradient of class 1 at a' in the first
    # component is s(2) = 0.880797, so a = -0.880797. If class 1 comes first, the mirror image.
    data = tiny.federation([[1.0], [1.0]], [0, 1], [[0, 1]])
    method = PerFedAvg(
        meta_steps=1, inner_lr=2.0, local=LocalTraining(lr=1.0, batch_size=1, momentum=0.5)
    )
    model = linear()
    reply = method.train(Payload(grouped("model", model.tensors())), tiny.client(data, 0, model))
    a = reply.tensors["model/0.weight"].flatten().tolist()
    assert abs(a[0]) == pytest.approx(sigmoid(2), abs=1e-6)
    assert a[1] == pytest.approx(-a[0])


def test_clipping_is_of_the_outer_gradient() -> None:
    # The inner step is as before, a' = 1; the outer gradient 0.119203 (-1, 1) has the norm 0.168578
    # and is cut to 0.1, so that a = 0.1 / √2.
    method = PerFedAvg(meta_steps=1, inner_lr=2.0, local=LocalTraining(lr=1.0, clip=0.1))
    assert trained(method)[0] == pytest.approx(0.1 / math.sqrt(2), abs=1e-6)


def one_sample_each() -> Arrays:
    """Return clients with one sample each: then every batch is the whole data."""
    some = tiny.arrays()
    first = np.unique(some["client_train"], return_index=True)[1]
    kept = {name: some[name][first] for name in ("x_train", "y_train", "client_train")}
    return Arrays(**{**some, **kept})


def test_without_the_inner_step_it_is_fedavg_to_the_bit() -> None:
    local = tiny.quick(momentum=0.9)
    data = one_sample_each()
    ours = run(tiny.experiment(PerFedAvg(local=local, meta_steps=3, inner_lr=0), data=data))
    plain = run(tiny.experiment(FedAvg(local=local.but(steps=3)), data=data))
    assert ours.digest == plain.digest
    other = run(tiny.experiment(PerFedAvg(local=local, meta_steps=3, inner_lr=0.1), data=data))
    assert other.digest != plain.digest


def test_clients_adapt_before_they_are_tested() -> None:
    # Two clients with one class each, x = 1, and both classes in the test. One meta-step makes
    # client 0 answer class 0 and client 1 class 1: each is right in 1/2, and each class is right
    # with one of them. The global model answers one class alone: 1 and 0.
    def model() -> nn.Module:
        made = nn.Linear(1, 2, bias=False)
        nn.init.zeros_(made.weight)
        return made

    x, y = np.ones((4, 1), np.float32), np.array([0, 0, 1, 1])
    data = Arrays(x, y, x, y, client_train=y, normalisation="none")
    chosen = Experiment(
        method=PerFedAvg(local={"lr": 1.0}, meta_steps=1, inner_lr=0.5),
        data=data,
        model=model,
        partition="natural",
        rounds=1,
        device="cpu",
    )
    result = run(chosen)
    assert result.metrics["personal"]["models"] == 2
    assert result.metrics["personal"]["accuracy"] == [0.5] * 5
    assert result.metrics["personal"]["mean"]["per_class"] == [0.5, 0.5]
    # The clients' moves cancel: the model that is shipped is still (0, 0).
    assert result.tensors["weight"].flatten().tolist() == pytest.approx([0.0, 0.0], abs=1e-6)
    adapted = PerFedAvg(local={"lr": 1.0}, adapt_steps=1, meta_steps=9, inner_lr=0.5)
    one = linear()
    reply = adapted.adapt(Payload(grouped("model", one.tensors())), tiny.client(DATA, 0, one))
    # a' = 0.5 · 1/2 = 1/4, so a = 1 - s(1/2).
    assert reply.tensors["model/0.weight"][0].item() == pytest.approx(1 - sigmoid(0.5), abs=1e-6)
    assert reply.scalars["steps"] == 1


@pytest.mark.parametrize("model", [tiny.plain_model, tiny.norm_model])
def test_how_often_one_looks_changes_nothing(model: Any) -> None:
    method = PerFedAvg(local=tiny.quick(), meta_steps=2, buffers="local")
    often = run(tiny.experiment(method, model, rounds=4))
    seldom = run(tiny.experiment(method, model, rounds=4, eval_every=4))
    assert often.digest == seldom.digest
    assert often.metrics["personal"] == seldom.metrics["personal"]


def test_layers_that_are_frozen_or_unused_stay() -> None:
    model = SplitModel(nn.Sequential(nn.Linear(1, 2, bias=False), nn.Linear(2, 2)))
    model.module.get_parameter("0.weight").requires_grad_(False)
    before = model.tensors()["0.weight"]
    method = PerFedAvg(meta_steps=2, local=LocalTraining(lr=1.0))
    reply = method.train(Payload(grouped("model", model.tensors())), tiny.client(DATA, 0, model))
    assert torch.equal(reply.tensors["model/0.weight"], before)


def test_a_client_without_samples_sends_what_it_received() -> None:
    data = tiny.federation([[1.0]], [0], [[0], []])
    model = linear()
    reply = PerFedAvg().train(
        Payload(grouped("model", model.tensors())), tiny.client(data, 1, model)
    )
    assert reply.scalars["samples"] == reply.scalars["steps"] == 0
    assert torch.equal(reply.tensors["model/0.weight"], linear().tensors()["0.weight"])
