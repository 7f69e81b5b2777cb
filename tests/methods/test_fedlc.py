"""FedLC is FedAvg with another loss: one step by hand, and the case in which it is FedAvg."""

from __future__ import annotations

import math
from typing import Any

import pytest
import tiny
import torch
from torch import nn

from fedtail import FedAvg, FedLC, LocalTraining, LogitCalibration, Method, run
from fedtail.losses import CrossEntropy
from fedtail.models import SplitModel
from fedtail.protocol import Payload, grouped


def linear(bias: bool = False) -> SplitModel:
    """Return softmax regression, starting from zero."""
    model = SplitModel(nn.Sequential(nn.Linear(1, 3, bias=bias)))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


@pytest.mark.parametrize(("absent", "p"), [(0, (1 / 4, 3 / 4, 0.0)), (1, (1 / 5, 3 / 5, 1 / 5))])
def test_one_step_by_hand(absent: float, p: tuple[float, ...]) -> None:
    # One client with 1 sample of class 0, 16 of class 1 and none of class 2; x = 1, w = 0, lr = 1.
    # τ = 2 ln 3: the calibrated softmax is (1/4, 3/4, 0) if class 2 is masked, and (1/5, 3/5, 1/5)
    # if it counts as one sample, see tests/losses. The mean gradient is p - (1/17, 16/17, 0), so
    # w = (1/17, 16/17, 0) - p.
    data = tiny.federation([[1.0]] * 17, [0] + [1] * 16, [range(17)], classes=3)
    method = FedLC(tau=2 * math.log(3), absent=absent, local=LocalTraining(lr=1.0, batch_size=17))
    payload = Payload(grouped("model", linear().tensors()))
    reply = method.train(payload, tiny.client(data, 0, linear()))
    weight = reply.tensors["model/0.weight"].flatten().tolist()
    assert weight == pytest.approx([1 / 17 - p[0], 16 / 17 - p[1], -p[2]], rel=1e-5)
    assert absent or weight[2] == 0.0
    assert set(reply.tensors) == {"model/0.weight"}


@pytest.mark.parametrize("model", [tiny.plain_model, tiny.norm_model])
def test_without_tau_it_is_fedavg_to_the_bit(model: Any) -> None:
    local = tiny.quick(momentum=0.9)
    ours = run(tiny.experiment(FedLC(tau=0, local=local), model))
    assert ours.digest == run(tiny.experiment(FedAvg(local=local), model)).digest


def test_what_nobody_has_is_not_unlearnt() -> None:
    # Nobody has class 3: FedAvg pushes its bias down, FedLC with a mask leaves its row as it was.
    before = tiny.plain_model()

    def model() -> nn.Module:
        made = tiny.plain_model()
        made.load_state_dict(before.state_dict())
        return made

    ours, plain = (
        run(tiny.experiment(method.model_validate(fields), model)).tensors
        for method, fields in (
            (FedLC, {"name": "fedlc", "absent": 0, "local": tiny.quick()}),
            (FedAvg, {"name": "fedavg", "local": tiny.quick()}),
        )
    )
    start = before.state_dict()
    assert torch.equal(ours["3.weight"][3], start["3.weight"][3])
    assert torch.equal(ours["3.bias"][3], start["3.bias"][3])
    assert plain["3.bias"][3] < start["3.bias"][3]


def test_both_numbers_have_a_short_form() -> None:
    both = FedLC(tau=0.5, absent=0)
    assert both.loss == LogitCalibration(tau=0.5, absent=0)
    assert FedLC(tau=0.5).but(absent=0) == both
    assert not {"tau", "absent"} & both.describe().keys()


def test_tau_has_a_short_form() -> None:
    long = FedLC(loss=LogitCalibration(tau=0.5))
    assert FedLC(tau=0.5) == long
    assert Method.model_validate({"name": "fedlc", "tau": 0.5}) == long
    assert Method.model_validate({"name": "fedlc", "loss": {"tau": 0.5}}) == long
    assert FedLC().but(tau=0.5) == long
    assert Method.model_validate({**FedLC().describe(), "tau": 0.5}) == long
    assert "tau" not in long.describe()
    named = {"name": "fedlc", "loss": "logit_calibration", "tau": 0.5}
    assert Method.model_validate(named) == long
    assert FedLC().loss == LogitCalibration()


def test_the_short_form_keeps_what_else_is_said_of_the_loss() -> None:
    method = FedLC(tau=0.5, loss=LogitCalibration(tau=2, exclude_true_class=True))
    assert method.loss == LogitCalibration(tau=0.5, exclude_true_class=True)


@pytest.mark.parametrize(
    "fields",
    [
        {"tau": -1},
        {"tau": "much"},
        {"tau": 1, "loss": "cross_entropy"},
        {"tau": 1, "loss": CrossEntropy()},
    ],
)
def test_a_tau_that_makes_no_sense_is_refused_by_name(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="tau"):
        Method.model_validate({"name": "fedlc", **fields})


def test_a_loss_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="loss"):
        Method.model_validate({"name": "fedlc", "tau": 1, "loss": 3})
