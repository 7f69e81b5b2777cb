"""FEDIC: uploads, calibrated on labelled server data, teach their average."""

from __future__ import annotations

from typing import Any

import pytest
import tiny
import torch
from torch import nn
from torch.nn import functional

from fedtail import FEDIC, FedAvg, FedtailError, run
from fedtail.data.federation import ServerData
from fedtail.methods.fedic import Calibration, seen
from fedtail.models import SplitModel
from fedtail.protocol import Server
from fedtail.training import LocalTraining
from fedtail.training.distillation import distil


def linear(weight: float = 0.0) -> SplitModel:
    model = SplitModel(nn.Linear(1, 2, bias=False))
    nn.init.constant_(model.classifier.get_parameter("weight"), weight)
    return model


DATA = ServerData(torch.tensor([[1.0], [-1.0]]), torch.tensor([0, 1]))


def server(model: SplitModel) -> Server:
    return tiny.server(model, 2, data=DATA)


class TestCalibration:
    def test_it_starts_half_open_with_equal_weights(self) -> None:
        # Uploads (2, 0) and (0, 2) have the mean (1, 1); half of it and half of (5, 1) is (3, 1).
        z = torch.tensor([[[2.0, 0.0]], [[0.0, 2.0]]])
        teacher = Calibration(2, 3)
        torch.testing.assert_close(teacher.weights(z), torch.full((2, 1, 1), 0.5))
        found = teacher(z, torch.ones(2, 1, 3), torch.tensor([[5.0, 1.0]]))
        torch.testing.assert_close(found, torch.tensor([[3.0, 1.0]]))

    def test_equal_logits_weigh_the_same_whatever_is_learned(self) -> None:
        teacher = Calibration(2, 1)
        with torch.no_grad():
            teacher.voice[0].copy_(torch.tensor([3.0, -1.0]))
        z = torch.tensor([[[2.0, 1.0]]]).expand(4, 1, 2)
        torch.testing.assert_close(teacher.weights(z), torch.full((4, 1, 1), 0.25))

    def test_weights_by_hand(self) -> None:
        # σ(0) = 1/2 and σ(ln 3) = 3/4: shares 2/5 and 3/5.
        teacher = Calibration(1, 1)
        with torch.no_grad():
            teacher.voice[0].fill_(1.0)
        z = torch.tensor([[[0.0]], [[3.0]]]).clamp(max=torch.tensor(3.0).log().item())
        torch.testing.assert_close(teacher.weights(z).flatten(), torch.tensor([0.4, 0.6]))

    def test_a_closed_gate_is_the_fine_tuned_model(self) -> None:
        teacher, tuned = Calibration(2, 1), torch.tensor([[5.0, 1.0]])
        with torch.no_grad():
            teacher.gate[1].fill_(-1e4)
        found = teacher(torch.randn(3, 1, 2), torch.ones(3, 1, 1), tuned)
        assert torch.equal(found, tuned)
        with torch.no_grad():
            teacher.gate[1].fill_(1e4)
            teacher.scale.fill_(2.0)
            teacher.shift.fill_(1.0)
        # An open one is 2 z̄ + 1.
        found = teacher(torch.tensor([[[1.0, 3.0]], [[3.0, 3.0]]]), torch.ones(2, 1, 1), tuned)
        torch.testing.assert_close(found, torch.tensor([[5.0, 7.0]]))


def test_without_a_teacher_it_is_fine_tuning() -> None:
    method = FEDIC(lam=0.0, distil_steps=7, distil_batch=2)
    model = linear()
    found = method.student(linear().tensors(), torch.zeros(0), DATA, server(model))
    other = linear()
    truth = functional.one_hot(DATA.y, 2).float()
    distil(server(other), DATA.x, truth, method.training(7))
    torch.testing.assert_close(found["weight"], other.tensors()["weight"])


def test_one_step_of_the_student_by_hand() -> None:
    # SGD in Adam's place is not offered, so the gradient is read off the loss: at W = 0 the student
    # says (1/2, 1/2). The teacher's z = (2 ln 3, 0) at T = 2 is (3/4, 1/4). λ = 1/2:
    # the gradient of λ KL is (1/2)(1/T)(p - q) = (-1/16, 1/16) for both samples, of the rest
    # (1/2)(p - y) = ∓1/4. Adam's first step is the rate in the sign of the sum, which for the
    # weight is the mean of x times it: (-5/16 · 1 + 3/16 · -1)/2 < 0, so W_0 grows.
    teacher = torch.tensor([[2 * torch.tensor(3.0).log().item(), 0.0]] * 2)
    method = FEDIC(distil_steps=1, distil_batch=2, distil_decay=0.0)
    found = method.student(linear().tensors(), teacher, DATA, server(linear()))
    torch.testing.assert_close(found["weight"], torch.tensor([[1e-3], [-1e-3]]), rtol=0, atol=1e-6)


def test_the_teacher_learns_from_labels() -> None:
    # One upload is right about everything, one is wrong: after calibration the teacher is right.
    method = FEDIC(distil_lr=0.05, distil_batch=2)
    right = torch.tensor([[1.0], [-1.0]])
    model = linear()
    told = server(model)
    teacher = method.teacher(
        linear().tensors(), [{"weight": right}, {"weight": -right}], DATA, told
    )
    assert teacher.argmax(dim=1).tolist() == [0, 1]
    assert told.logged["teacher_right"] == 1.0


def test_no_calibration_and_no_tuning_take_the_start() -> None:
    # Half of the mean of (2, -2) and (0, 0), half of the average's 0: logits ±1/2.
    method = FEDIC(tune_steps=0, calibrate_steps=0)
    two = torch.tensor([[2.0], [-2.0]])
    found = method.teacher(
        linear().tensors(), [{"weight": two}, {"weight": 0 * two}], DATA, server(linear())
    )
    torch.testing.assert_close(found, torch.tensor([[0.5, -0.5], [-0.5, 0.5]]))


def test_logits_and_features_of_other_tensors() -> None:
    z, h = seen(linear(), DATA.x, {"weight": torch.tensor([[2.0], [3.0]])})
    assert z.tolist() == [[2.0, 3.0], [-2.0, -3.0]]
    assert h.tolist() == DATA.x.tolist()


def test_no_step_is_fedavg() -> None:
    local: Any = tiny.quick()
    chosen = tiny.experiment(FEDIC(local=local, distil_steps=0), server_per_class=2)
    plain = tiny.experiment(FedAvg(local=local), server_per_class=2)
    assert run(chosen).digest == run(plain).digest


def test_without_server_data_it_is_refused() -> None:
    with pytest.raises(FedtailError, match="server_per_class"):
        run(tiny.experiment(FEDIC(local=tiny.quick())))


def test_it_trains_with_adam_by_its_fields() -> None:
    expected = LocalTraining(optimizer="adam", lr=1e-3, weight_decay=2e-4, steps=3, batch_size=20)
    assert FEDIC().training(3) == expected
