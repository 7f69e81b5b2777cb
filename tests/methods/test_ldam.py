"""LDAM: a cosine head in place of the linear one, one step by hand, the last rounds."""

from __future__ import annotations

import math
from typing import Any

import pytest
import tiny
import torch
from torch import nn

from fedtail import LDAM, FedAvg, LDAMLoss, LocalTraining, Method, run
from fedtail.losses import BalancedSoftmax
from fedtail.models import CosineHead, SplitModel, experts
from fedtail.protocol import Payload, grouped


def test_one_step_by_hand_with_a_linear_head() -> None:
    # One client with 16 samples of class 0 and 1 of class 1: margins m (1/2, 1) = (1/4, 1/2), in
    # logits times s = 2 ln 3: (ln 3 / 2, ln 3). x = 1, w = 0, lr = 1. A sample of class 0 sees
    # (-ln 3 / 2, 0): p_1 = √3 / (1 + √3); of class 1 (0, -ln 3): p_0 = 3/4.
    # w_0 = (16 p_1 - 3/4) / 17 = -w_1.
    model = SplitModel(nn.Sequential(nn.Linear(1, 2, bias=False)))
    nn.init.zeros_(model.module.get_parameter("0.weight"))
    data = tiny.federation([[1.0]] * 17, [0] * 16 + [1], [range(17)])
    loss = LDAMLoss(scale=2 * math.log(3), drw=False)
    method = LDAM(loss=loss, cosine=False, local=LocalTraining(lr=1.0, batch_size=17))
    reply = method.train(Payload(grouped("model", model.tensors())), tiny.client(data, 0, model))
    w = (16 * math.sqrt(3) / (1 + math.sqrt(3)) - 3 / 4) / 17
    assert reply.tensors["model/0.weight"].flatten().tolist() == pytest.approx([w, -w], rel=1e-5)


def test_the_last_third_of_the_rounds_weighs_classes() -> None:
    # Without margins, β = 1/2 and n = (2, 1): weights (1/2) / (3/4, 1/2) = (2/3, 1). x = 1, w = 0,
    # lr = 1: the two samples of class 0 and the one of class 1 pull by 1/2 with weights 4/3 and 1
    # of 7/3 in all: w_0 = (4/3 - 1) / (7/3) / 2 = 1/14. Before, (2 - 1) / 3 / 2 = 1/6.
    data = tiny.federation([[1.0]] * 3, [0, 0, 1], [range(3)])
    loss = LDAMLoss(margin=0, beta=0.5)
    method = LDAM(loss=loss, cosine=False, local=LocalTraining(lr=1.0, batch_size=3))
    for moment, expected in ((2, 1 / 6), (3, 1 / 14)):
        model = SplitModel(nn.Sequential(nn.Linear(1, 2, bias=False)))
        nn.init.zeros_(model.module.get_parameter("0.weight"))
        payload = Payload(grouped("model", model.tensors()))
        reply = method.train(payload, tiny.client(data, 0, model, round=moment, rounds=3))
        # A difference of larger numbers in float32.
        assert float(reply.tensors["model/0.weight"][0]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("model", [tiny.plain_model, tiny.norm_model])
def test_without_head_margin_and_weights_it_is_fedavg_to_the_bit(model: Any) -> None:
    bare = LDAM(loss=LDAMLoss(margin=0, drw=False), cosine=False, local=tiny.quick())
    ours = run(tiny.experiment(bare, model))
    assert ours.digest == run(tiny.experiment(FedAvg(local=tiny.quick()), model)).digest


def test_the_head_is_a_cosine_of_the_losss_scale() -> None:
    base = SplitModel(tiny.plain_model())
    head = LDAM(loss=LDAMLoss(scale=12)).build_model(base).classifier
    assert isinstance(head, CosineHead)
    assert head.scale == 12
    other = LDAM(loss=BalancedSoftmax()).build_model(base).classifier
    assert isinstance(other, CosineHead)
    assert other.scale == 30
    assert LDAM(cosine=False).build_model(base) is base
    made = LDAM().build_model(experts(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)), "1", 2))
    assert all(isinstance(head, CosineHead) for head in made.heads)


def test_a_cosine_head_with_the_names_of_the_users_is_tested_as_a_cosine_head() -> None:
    # A classifier without bias has the one name "3.weight" either way. The shapes differ here
    # (6 x 4 and 4 x 6); for a square one only the meaning would.
    result = run(tiny.experiment(LDAM(local=tiny.quick()), tiny.unbiased_model))
    assert result.tensors["3.weight"].shape == (6, tiny.CLASSES)
    logits = result.network(torch.randn(9, *tiny.IMAGE))
    assert float(logits.detach().abs().max()) <= 30.0 + 1e-4  # a cosine may round to above 1
    assert isinstance(result.network.get_submodule("3"), CosineHead)


def test_the_papers_values_and_how_to_change_them() -> None:
    loss = LDAM().loss
    assert isinstance(loss, LDAMLoss)
    assert (loss.margin, loss.scale, loss.drw, loss.beta) == (0.5, 30, True, 0.9999)
    named: Method[Any] = Method.model_validate(
        {"name": "ldam", "loss": {"margin": 0.3}, "prior": "global"}
    )
    assert named.describe()["loss"]["margin"] == 0.3
