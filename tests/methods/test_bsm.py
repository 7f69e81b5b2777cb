"""BSM is FedAvg with the balanced softmax: one step by hand with each prior."""

from __future__ import annotations

import pytest
import tiny
import torch
from torch import nn

from fedtail import (
    BSM,
    BalancedSoftmax,
    FedAvg,
    GlobalPrior,
    LocalPrior,
    LocalTraining,
    ModelState,
    run,
)
from fedtail.models import SplitModel
from fedtail.protocol import Payload, grouped
from fedtail.training import ClassPrior


@pytest.mark.parametrize(
    ("prior", "share"), [(LocalPrior(), [1 / 4, 3 / 4]), (GlobalPrior(), [3 / 4, 1 / 4])]
)
def test_one_step_by_hand(prior: ClassPrior, share: list[float]) -> None:
    # A client with 1 sample of class 0 and 3 of class 1; together the clients have 9 and 3. x = 1,
    # w = 0, lr = 1: the softmax is the prior's shares π, the mean gradient π - (1/4, 3/4).
    model = SplitModel(nn.Sequential(nn.Linear(1, 2, bias=False)))
    nn.init.zeros_(model.module.get_parameter("0.weight"))
    data = tiny.federation([[1.0]] * 4, [0, 1, 1, 1], [range(4)])
    method = BSM(prior=prior, local=LocalTraining(lr=1.0, batch_size=4))
    sent = {**grouped("model", model.tensors()), "prior/counts": torch.tensor([9.0, 3.0])}
    reply = method.train(Payload(sent), tiny.client(data, 0, model))
    expected = [1 / 4 - share[0], 3 / 4 - share[1]]
    assert reply.tensors["model/0.weight"].flatten().tolist() == pytest.approx(expected, abs=1e-6)


def test_it_is_fedavg_with_that_loss() -> None:
    ours = run(tiny.experiment(BSM(local=tiny.quick()), tiny.norm_model))
    same: FedAvg[ModelState] = FedAvg(loss=BalancedSoftmax(), local=tiny.quick())
    assert ours.digest == run(tiny.experiment(same, tiny.norm_model)).digest
