"""FedRS is FedAvg with the restricted softmax: one step by hand, and when it is FedAvg."""

from __future__ import annotations

from typing import Any

import pytest
import tiny
import torch
from torch import nn

from fedtail import FedAvg, FedRS, LocalTraining, Method, RestrictedSoftmax, run
from fedtail.models import SplitModel
from fedtail.protocol import Payload, grouped


def test_one_step_by_hand() -> None:
    # One client with class 0 only, of three; x = 1, w = 0, lr = 1, α = 1/2. The softmax is 1/3:
    # w_0 moves by 2/3, and each missing class by α · -1/3.
    model = SplitModel(nn.Sequential(nn.Linear(1, 3, bias=False)))
    nn.init.zeros_(model.module.get_parameter("0.weight"))
    data = tiny.federation([[1.0]] * 2, [0, 0], [range(2)], classes=3)
    method = FedRS(local=LocalTraining(lr=1.0, batch_size=2))
    reply = method.train(Payload(grouped("model", model.tensors())), tiny.client(data, 0, model))
    weight = reply.tensors["model/0.weight"].flatten().tolist()
    assert weight == pytest.approx([2 / 3, -1 / 6, -1 / 6])


@pytest.mark.parametrize("model", [tiny.plain_model, tiny.norm_model])
@pytest.mark.parametrize("scaling", ["missing", "counts"])
def test_with_alpha_1_it_is_fedavg_to_the_bit(model: Any, scaling: str) -> None:
    loss = RestrictedSoftmax.model_validate({"alpha": 1, "scaling": scaling})
    ours = run(tiny.experiment(FedRS(loss=loss, local=tiny.quick()), model))
    assert ours.digest == run(tiny.experiment(FedAvg(local=tiny.quick()), model)).digest


def test_with_alpha_0_what_nobody_has_stays_as_it_was() -> None:
    # Nobody has class 3, and the gradient of its logit is α times something.
    before = tiny.plain_model()

    def model() -> nn.Module:
        made = tiny.plain_model()
        made.load_state_dict(before.state_dict())
        return made

    method = FedRS(loss=RestrictedSoftmax(alpha=0), local=tiny.quick())
    after = run(tiny.experiment(method, model)).tensors
    assert torch.equal(after["3.weight"][3], before.state_dict()["3.weight"][3])
    assert not torch.equal(after["3.weight"][0], before.state_dict()["3.weight"][0])


def test_the_papers_alpha_and_how_to_change_it() -> None:
    assert FedRS().loss == RestrictedSoftmax(alpha=0.5)
    named: Method[Any] = Method.model_validate(
        {"name": "fedrs", "loss": {"alpha": 0.9, "scaling": "counts"}}
    )
    assert named == FedRS(loss=RestrictedSoftmax(alpha=0.9, scaling="counts"))
