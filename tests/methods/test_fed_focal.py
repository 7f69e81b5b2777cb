"""Fed-Focal is FedAvg with the focal loss: one step by hand, and the case in which it is FedAvg."""

from __future__ import annotations

from typing import Any

import pytest
import tiny
import torch
from torch import nn

from fedtail import FedAvg, FedFocal, Focal, LocalTraining, Method, run
from fedtail.models import SplitModel
from fedtail.protocol import Payload, grouped


def test_one_step_by_hand() -> None:
    # One client, samples x = 1 of class 0, 0 and 1; w = 0, lr = 1. p = 1/2 for all: with γ = 2 the
    # slope in p is 2 (1/2) ln(1/2) - (1/2)² / (1/2) = -ln 2 - 1/2, and dp/dz_y = 1/4. Each sample
    # moves z_y up and the other down by g = (ln 2 + 1/2) / 4; the mean is g (2 - 1) / 3.
    model = SplitModel(nn.Sequential(nn.Linear(1, 2, bias=False)))
    nn.init.zeros_(model.module.get_parameter("0.weight"))
    data = tiny.federation([[1.0]] * 3, [0, 0, 1], [range(3)])
    method = FedFocal(local=LocalTraining(lr=1.0, batch_size=3))
    reply = method.train(Payload(grouped("model", model.tensors())), tiny.client(data, 0, model))
    g = (float(torch.log(torch.tensor(2.0))) + 0.5) / 4
    found = reply.tensors["model/0.weight"].flatten().tolist()
    assert found == pytest.approx([g / 3, -g / 3], rel=1e-5)  # a difference of larger numbers


@pytest.mark.parametrize("model", [tiny.plain_model, tiny.norm_model])
def test_without_gamma_it_is_fedavg_to_the_bit(model: Any) -> None:
    local = tiny.quick(momentum=0.9)
    ours = run(tiny.experiment(FedFocal(loss=Focal(gamma=0), local=local), model))
    assert ours.digest == run(tiny.experiment(FedAvg(local=local), model)).digest


def test_the_papers_gamma_and_how_to_change_it() -> None:
    assert FedFocal().loss == Focal(gamma=2)
    named: Method[Any] = Method.model_validate(
        {"name": "fed-focal", "loss": {"gamma": 0.5, "detach": True}}
    )
    assert named == FedFocal(loss=Focal(gamma=0.5, detach=True))
