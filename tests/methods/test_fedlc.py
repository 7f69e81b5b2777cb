"""FedLC is FedAvg with another loss: one step by hand, and the case in which it is FedAvg."""

from __future__ import annotations

import math
from typing import Any

import pytest
import tiny
import torch
from torch import nn

from fedtail import FedAvg, FedLC, FedtailError, LocalTraining, LogitCalibration, Method, run
from fedtail.losses import CrossEntropy
from fedtail.models import CosineHead, SplitModel
from fedtail.protocol import Payload, Update, grouped


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


# The deviation


def measured(
    tau: float,
    parts: list[list[int]],
    labels: list[int],
    inputs: list[float] | None = None,
    bias: bool = False,
) -> dict[str, Any]:
    """Return what one round at w = 0 logs; x = 1 for every sample unless inputs are given."""
    x = [[value] for value in inputs or [1.0] * len(labels)]
    data = tiny.federation(x, labels, parts, classes=3)
    method = FedLC(tau=tau, absent=0, deviation=True, local=tiny.quick())
    model = linear(bias)
    server = tiny.server(model, len(parts), num_classes=3)
    state = method.init(model, server)
    payload = method.broadcast(state, server)
    clients = [tiny.client(data, k, model) for k in range(len(parts))]
    updates = [Update(k, method.train(payload, client)) for k, client in enumerate(clients)]
    tiny.after(method, state, updates, server)
    return dict(server.logged)


def test_deviation_by_hand() -> None:
    # 1 sample of class 0 and 16 of class 1: all likenesses are 1. At p = 1/3 class 0 is pushed by
    # 16/3 and pulled by 2/3, class 1 pushed by 1/3 and pulled by 32/3; class 2 gets 1/3.
    labels, everything = [0] + [1] * 16, [list(range(17))]
    assert measured(0, everything, labels) == pytest.approx(
        {"deviation_minority": 8, "deviation_majority": 1 / 32, "absent_push": 1 / 3}
    )
    # Calibrated and masked, p = (1/4, 3/4, 0): 16/4 against 3/4, and 3/4 against 16/4.
    assert measured(2 * math.log(3), everything, labels) == pytest.approx(
        {"deviation_minority": 16 / 3, "deviation_majority": 3 / 16, "absent_push": 0},
        rel=1e-6,
        abs=1e-7,
    )


def test_deviation_is_the_geometric_mean_over_classes_and_clients() -> None:
    # At p = 1/3, client 0 as above: 8 and 1/32. Client 1 has 1 and 4: (4/3) / (2/3) = 2 and
    # (1/3) / (8/3) = 1/8. Client 2 has one class: nothing pushes it, and two classes are absent.
    labels = [0] + [1] * 16 + [0] + [1] * 4 + [2]
    parts = [list(range(17)), list(range(17, 22)), [22]]
    assert measured(0, parts, labels) == pytest.approx(
        {"deviation_minority": 4, "deviation_majority": 1 / 16, "absent_push": (22 + 2) / 3 / 23}
    )
    assert measured(0, [[22]], labels) == pytest.approx({"absent_push": 2 / 3})


@pytest.mark.parametrize(("bias", "rare", "frequent"), [(False, 3, 1 / 12), (True, 2, 1 / 10)])
def test_a_bias_makes_all_features_more_alike(bias: bool, rare: float, frequent: float) -> None:
    # Class 0: x = 1, class 1: x = 3 twice, p = 1/3. Likenesses to class 0 are 1 and 3, to class 1
    # 3 and 9; a bias adds 1. D_0 = 2/3 · 3 / (2/3 · 1), or 2/3 · 4 / (2/3 · 2).
    # D_1 = 1/3 · 3 / (4/3 · 9), or 1/3 · 4 / (4/3 · 10).
    found = measured(0, [[0, 1, 2]], [0, 1, 1], [1.0, 3.0, 3.0], bias)
    assert found["deviation_minority"] == pytest.approx(rare)
    assert found["deviation_majority"] == pytest.approx(frequent)


def test_classes_of_one_size_are_not_rare() -> None:
    # Each is pushed by 1/3 and pulled by 2/3.
    found = measured(0, [[0, 1]], [0, 1])
    assert found == pytest.approx({"deviation_majority": 1 / 2, "absent_push": 1 / 3})


@pytest.mark.parametrize("model", [tiny.plain_model, tiny.norm_model, tiny.dropout_model])
def test_measuring_changes_nothing(model: Any) -> None:
    plain, watched = (
        run(tiny.experiment(FedLC(absent=0, deviation=deviation, local=tiny.quick()), model))
        for deviation in (False, True)
    )
    assert watched.digest == plain.digest
    assert [record["method"] for record in plain.history] == [{}] * 3
    for record in watched.history:
        assert record["method"]["absent_push"] == 0
        assert record["method"]["deviation_minority"] > 0
        # Two scalars and five more, of 8 bytes each.
        assert record["bytes_up"] - record["bytes_down"] == 4 * 8 * 7


def test_deviation_needs_a_linear_classifier() -> None:
    model = SplitModel(nn.Sequential(nn.Linear(2, 4), CosineHead(4, 3)), "1")
    assert FedLC().build_model(model) is model
    with pytest.raises(FedtailError, match="linear classifier"):
        FedLC(deviation=True).build_model(model)
