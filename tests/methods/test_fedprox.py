"""FedProx by hand, and what it is without its term."""

from __future__ import annotations

from typing import Any

import pytest
import tiny
import torch
from torch import Tensor, nn

from fedtail import FedAvg, FedLC, FedProx, LocalTraining, LogitCalibration, run
from fedtail.losses import LocalLoss, LossContext
from fedtail.methods import ModelState
from fedtail.models import Output, SplitModel
from fedtail.protocol import Payload, grouped

ONE = tiny.federation([[1.0]], [0], [[0]])


class Sloped(LocalLoss):
    """3 z_0 + 4 z_1: a gradient of (3, 4), whatever the weights."""

    def __call__(self, output: Output, y: Tensor, context: LossContext) -> Tensor:
        return (output.logits * torch.tensor([3.0, 4.0])).sum()


def trained(method: FedAvg[ModelState], start: float = 0.0) -> list[float]:
    model = SplitModel(nn.Sequential(nn.Linear(1, 2, bias=False)))
    payload = Payload({"model/0.weight": torch.full((2, 1), start)})
    reply = method.train(payload, tiny.client(ONE, 0, model))
    found: list[float] = reply.tensors["model/0.weight"].flatten().tolist()
    return found


@pytest.mark.parametrize("start", [0.0, 10.0])
def test_three_steps_by_hand(start: float) -> None:
    # g = (3, 4), η = 1/4, μ = 2, so that d = w - w_t goes d ← d - η (g + μ d) = d/2 - g/4:
    # -g/4, -3g/8, -7g/16 = (-21/16, -7/4). Where it starts makes no difference to d.
    local = LocalTraining(lr=0.25, steps=3)
    found = trained(FedProx(local=local, loss=Sloped(), mu=2.0), start)
    assert found == [start - 21 / 16, start - 7 / 4]


def test_the_term_is_clipped_with_the_gradient() -> None:
    # Step 1: g = (3, 4) has norm 5, clipped to 1: d = -(0.6, 0.8). Step 2, μ = 2.5: g + μ d =
    # (3, 4) - (1.5, 2) has the same direction, clipped to 1 again: d = -(1.2, 1.6).
    local = LocalTraining(lr=1.0, steps=2, clip=1.0)
    found = trained(FedProx(local=local, loss=Sloped(), mu=2.5))
    assert found == pytest.approx([-1.2, -1.6], rel=1e-5)


@pytest.mark.parametrize("model", [tiny.plain_model, tiny.norm_model, tiny.dropout_model])
def test_without_the_term_it_is_fedavg_to_the_last_bit(model: Any) -> None:
    local = tiny.quick(momentum=0.9, clip=1.0, weight_decay=0.01)
    plain = run(tiny.experiment(FedAvg(local=local), model))
    assert run(tiny.experiment(FedProx(local=local, mu=0.0), model)).digest == plain.digest
    assert run(tiny.experiment(FedProx(local=local, mu=0.1), model)).digest != plain.digest


def test_a_single_step_is_that_of_fedavg() -> None:
    # At w = w_t the term has no gradient.
    local = tiny.quick(steps=1)
    plain = run(tiny.experiment(FedAvg(local=local)))
    assert run(tiny.experiment(FedProx(local=local, mu=5.0))).digest == plain.digest


def test_buffers_are_left_alone() -> None:
    # One step of a BatchNorm model: statistics move as in FedAvg whatever μ is.
    model = SplitModel(nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 2)))
    data = tiny.federation([[0.0], [2.0]], [0, 1], [[0, 1]])
    payload = Payload(grouped("model", model.tensors()))
    local = LocalTraining(lr=0.1, steps=3)
    for mu in (0.0, 5.0):
        reply = FedProx(local=local, mu=mu).train(payload, tiny.client(data, 0, model))
        # Mean 1, momentum 0.1: 1 - 0.9³.
        assert float(reply.tensors["model/0.running_mean"]) == pytest.approx(1 - 0.9**3)


def test_a_frozen_parameter_stays() -> None:
    model = SplitModel(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 2)))
    model.module.get_parameter("0.weight").requires_grad_(False)
    before = model.tensors()
    method = FedProx(local=LocalTraining(lr=0.1, steps=3), mu=1.0)
    reply = method.train(Payload(grouped("model", before)), tiny.client(ONE, 0, model))
    assert torch.equal(reply.tensors["model/0.weight"], before["0.weight"])
    assert not torch.equal(reply.tensors["model/1.weight"], before["1.weight"])


def test_a_parameter_that_nothing_depends_on_stays() -> None:
    model = tiny.spare_model()
    method = FedProx(local=LocalTraining(lr=0.1, steps=3), mu=1.0)
    payload = Payload(grouped("model", model.tensors()))
    reply = method.train(payload, tiny.client(ONE, 0, model))
    assert reply.tensors["model/spare"].tolist() == [1.0]


# With FedLC's loss (Table 7 of its paper)


def test_with_calibrated_logits_and_no_term_it_is_fedlc() -> None:
    local = tiny.quick(momentum=0.9)
    both = FedProx(local=local, mu=0.0, loss=LogitCalibration())
    for model in (tiny.plain_model, tiny.norm_model):
        lc = run(tiny.experiment(FedLC(local=local), model))
        assert run(tiny.experiment(both, model)).digest == lc.digest


def test_with_no_margins_and_the_term_it_is_fedprox_on_the_classes_there_are() -> None:
    # τ = 0 leaves only that absent classes drop out; with none absent nothing is left of it.
    data = tiny.federation([[1.0], [2.0]], [0, 1], [[0, 1]])
    model = SplitModel(nn.Sequential(nn.Linear(1, 2)))
    payload = Payload(grouped("model", model.tensors()))
    local = LocalTraining(lr=0.5, steps=4)
    one, other = (
        FedProx(local=local, mu=0.3, **loss).train(payload, tiny.client(data, 0, model))
        for loss in ({}, {"loss": LogitCalibration(tau=0.0)})
    )
    torch.testing.assert_close(one.tensors["model/0.weight"], other.tensors["model/0.weight"])
