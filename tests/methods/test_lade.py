"""LADE is FedAvg with its loss, and BSM without its regulariser."""

from __future__ import annotations

import math
from typing import Any

import pytest
import tiny
from torch import nn

from fedtail import BSM, LADE, LADELoss, LocalTraining, Method, run
from fedtail.models import SplitModel
from fedtail.protocol import Payload, grouped


def test_one_step_by_hand() -> None:
    # One client, one sample of each of two classes, x = 1, w = 0, lr = 1. π = (1/2, 1/2), so the
    # balanced softmax has no gradient in the mean: (1/2, 1/2) - (1/2, 1/2). A_c = 0, and the mean
    # over class c moves z_c of one sample by π_c, A_c both by -π_c/2 each: nothing is left either.
    # With another sample of class 0, π = (2/3, 1/3): balanced softmax 0 again;
    # A_c = -ln(2 π_c) = (-ln 4/3, ln 3/2). dLADER/dw_c = -π_c (1 - 1 - 2 ρ A_c) = 2 ρ π_c A_c,
    # since x = 1 adds the samples up. w_c = -λ 2 ρ π_c A_c.
    model = SplitModel(nn.Sequential(nn.Linear(1, 2, bias=False)))
    nn.init.zeros_(model.module.get_parameter("0.weight"))
    data = tiny.federation([[1.0]] * 3, [0, 0, 1], [range(3)])
    method = LADE(loss=LADELoss(lam=0.5, rho=0.1), local=LocalTraining(lr=1.0, batch_size=3))
    reply = method.train(Payload(grouped("model", model.tensors())), tiny.client(data, 0, model))
    expected = [0.1 * 2 / 3 * math.log(4 / 3), -0.1 / 3 * math.log(3 / 2)]
    found = reply.tensors["model/0.weight"].flatten().tolist()
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("model", [tiny.plain_model, tiny.norm_model])
@pytest.mark.parametrize("prior", ["local", "global", "proxy"])
def test_without_lambda_it_is_bsm_to_the_bit(model: Any, prior: str) -> None:
    fields = {"prior": prior, "local": tiny.quick()}
    ours: Method[Any] = Method.model_validate({"name": "lade", "loss": {"lam": 0}, **fields})
    same: Method[Any] = Method.model_validate({"name": "bsm", **fields})
    assert isinstance(same, BSM)
    found, expected = (run(tiny.experiment(method, model)).digest for method in (ours, same))
    assert found == expected
