"""FedVLS by hand: each term on logits whose exponentials are whole numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import tiny
import torch
from torch import nn

from fedtail import BSM, CrossEntropy, FedAvg, FedVLS, LocalRun, LocalTraining, run
from fedtail.losses import BalancedSoftmax
from fedtail.methods.fedvls import wrong_logits
from fedtail.models import SplitModel
from fedtail.protocol import Payload, grouped

# e^z = (6, 3, 9, 1). Who holds three samples of class 0 and one of class 1 has the prior
# π = (3/4, 1/4, 0, 0), and classes 2 and 3 are vacant.
Z = [math.log(6), math.log(3), math.log(9), 0.0]
TWO_HELD, THREE_HELD, ALL_HELD = [0, 0, 0, 1], [0, 0, 0, 1, 2], [0, 0, 0, 1, 2, 3]


def logits_of(z: list[float]) -> SplitModel:
    """Return a model whose logits for x = 1 are its weights."""
    model = SplitModel(nn.Sequential(nn.Linear(1, len(z), bias=False)))
    with torch.no_grad():
        model.module.get_parameter("0.weight").copy_(torch.tensor(z)[:, None])
    return model


def started(method: FedVLS, labels: list[int], model: SplitModel) -> LocalRun:
    """Return a task of a client with these labels that has received the model."""
    data = tiny.federation([[1.0]] * len(labels), labels, [range(len(labels))], classes=4)
    payload = Payload(grouped("model", model.tensors()))
    return method.start(payload, tiny.client(data, 0, model))


def loss_of(
    method: FedVLS, labels: list[int], y: list[int], student: list[float] | None = None
) -> tuple[float, list[float]]:
    """Return the loss of a batch, and ∂loss/∂z: the teacher's logits are Z."""
    model = logits_of(Z)
    local = started(method, labels, model)
    weight = model.module.get_parameter("0.weight")
    with torch.no_grad():
        weight.copy_(torch.tensor(student or Z)[:, None])
    loss = method.batch_loss(local, torch.ones(len(y), 1), torch.tensor(y))
    (gradient,) = torch.autograd.grad(loss, [weight])
    return float(loss.detach()), gradient.flatten().tolist()


class TestTerms:
    def test_all_three(self) -> None:
        # One sample of class 0 and one of 1, both with logits e^z = (6, 3, 1, 1).
        # CE: e^z π = (18, 3) / 4, so q = (6/7, 1/7): the mean of -ln 6/7 and -ln 1/7, and the mean
        # gradient q - (1/2, 1/2) = (5/14, -5/14).
        # Suppression: e^z / (π C) = (6 / 3, 3 / 1) = (2, 3), and 1 for the sample of the class
        # itself: 3/4 ln (1 + 2)/2 + 1/4 ln (3 + 1)/2, with the gradient 3/4 · 2/3 = 1/2 and
        # 1/4 · 3/4 = 3/16.
        # Distillation: the teacher's e^z = (9, 1) are (9/10, 1/10), the student's (1, 1) are
        # (1/2, 1/2): 9/10 ln 9/5 + 1/10 ln 1/5, with the gradient (-2/5, 2/5).
        method = FedVLS(lam=0.5, suppression=0.1)
        student = [math.log(6), math.log(3), 0.0, 0.0]
        loss, gradient = loss_of(method, TWO_HELD, [0, 1], student)
        balanced = -(math.log(6 / 7) + math.log(1 / 7)) / 2
        wrong = 3 / 4 * math.log(3 / 2) + 1 / 4 * math.log(2)
        distilled = 9 / 10 * math.log(9 / 5) + 1 / 10 * math.log(1 / 5)
        assert loss == pytest.approx(balanced + 0.5 * distilled + 0.1 * wrong, rel=1e-6)
        expected = [5 / 14 + 0.1 / 2, -5 / 14 + 0.3 / 16, -0.2, 0.2]
        assert gradient == pytest.approx(expected, abs=1e-6)

    def test_the_defaults(self) -> None:
        student = [math.log(6), math.log(3), 0.0, 0.0]
        ours = loss_of(FedVLS(), TWO_HELD, [0, 1], student)
        assert ours == loss_of(FedVLS(lam=0.1, suppression=0.005), TWO_HELD, [0, 1], student)

    def test_at_the_teacher_distillation_rests(self) -> None:
        # KL = 0 with the gradient 0: what is left is CE, (5/14, -5/14), and no vacant logit moves.
        loss, gradient = loss_of(FedVLS(lam=100.0, suppression=0), TWO_HELD, [0, 1])
        assert loss == pytest.approx(-(math.log(6 / 7) + math.log(1 / 7)) / 2, rel=1e-5)
        assert gradient == pytest.approx([5 / 14, -5 / 14, 0.0, 0.0], abs=1e-5)

    def test_without_distillation_vacant_logits_get_no_gradient(self) -> None:
        _, gradient = loss_of(FedVLS(lam=0, suppression=10.0), TWO_HELD, [0, 1])
        assert gradient[2:] == [0.0, 0.0]
        assert 0.0 not in gradient[:2]

    @pytest.mark.parametrize("labels", [THREE_HELD, ALL_HELD], ids=["one vacant", "none vacant"])
    def test_fewer_than_two_vacant_classes_have_nothing_to_teach(self, labels: list[int]) -> None:
        # The student differs from the teacher; it is balanced softmax and suppression all the same.
        student = torch.tensor([1.0, -1.0, 2.0, 0.5])
        method, y = FedVLS(lam=100.0, suppression=0.5), torch.tensor([0, 1])
        local = started(method, labels, logits_of(Z))
        z = student.repeat(2, 1)
        output = logits_of(student.tolist()).output(torch.ones(2, 1))
        expected = BalancedSoftmax()(output, y, local.context)
        expected = expected + 0.5 * wrong_logits(z, y, local.context.prior)
        assert local.aux is None
        found, _ = loss_of(method, labels, [0, 1], student.tolist())
        assert found == pytest.approx(float(expected.detach()), rel=1e-6)

    def test_vacant_is_what_the_client_lacks_whatever_the_prior(self) -> None:
        data = tiny.federation([[1.0]] * 4, [0, 1, 2, 3], [[0, 1], [2, 3]], classes=4)
        model = logits_of(Z)
        told = {"prior/counts": torch.ones(4)}
        payload = Payload({**grouped("model", model.tensors()), **told})
        method = FedVLS.model_validate({"prior": "global"})
        absent = method.start(payload, tiny.client(data, 0, model)).aux
        assert absent.vacant.tolist() == [False, False, True, True]


class TestSuppression:
    def test_by_hand(self) -> None:
        # Counts (2, 1, 1), C = 3, π C = (3/2, 3/4, 3/4). Two samples of class 0 and one of class 2,
        # e^z = (3, 3, 3), (6, 9, 6), (12, 6, 9):
        # class 0: 12 / (3/2) = 8, own 1 and 1: ln 10/3; class 1: 4 + 12 + 8 = 24: ln 8;
        # class 2: 4 + 8 and own 1: ln 13/3.
        z = torch.tensor([[3.0, 3.0, 3.0], [6.0, 9.0, 6.0], [12.0, 6.0, 9.0]]).log()
        found = wrong_logits(z, torch.tensor([0, 0, 2]), torch.tensor([2.0, 1.0, 1.0]))
        expected = math.log(10 / 3) / 2 + math.log(8) / 4 + math.log(13 / 3) / 4
        assert float(found) == pytest.approx(expected, rel=1e-6)

    def test_one_class_has_no_wrong_logit_of_weight(self) -> None:
        # log mean (1, 1) = 0, and a class that is not held has no weight.
        z = torch.tensor([[5.0, 7.0], [2.0, 3.0]], requires_grad=True)
        found = wrong_logits(z, torch.tensor([0, 0]), torch.tensor([4.0, 0.0]))
        assert float(found.detach()) == 0.0
        assert torch.equal(torch.autograd.grad(found, z)[0], torch.zeros(2, 2))

    def test_huge_logits_stay_finite(self) -> None:
        z = torch.tensor([[1e4, -1e4], [-1e4, 1e4]], requires_grad=True)
        found = wrong_logits(z, torch.tensor([1, 0]), torch.tensor([1.0, 1.0]))
        assert bool(torch.isfinite(torch.autograd.grad(found, z)[0]).all())
        assert float(found.detach()) == pytest.approx(1e4, rel=1e-3)


def test_two_steps_by_hand() -> None:
    # One feature h = a x with x = 1, logits h w, from a = 1 and w = (0, ln 2, ln 3, 0); one sample
    # of each of classes 0 and 1, so that the prior is equal. λ = 2, η = 1, no suppression, y = 0.
    # Step 1: q = (1/3, 2/3), teacher and student agree: ∂z = (-2/3, 2/3, 0, 0) = ∂w, and
    #   ∂a = ∂z · w = 2/3 ln 2. Now a = 0.537902 and w = (0.666667, 0.026481, ln 3, 0).
    # Step 2: z = a w. CE: q_0 = s(a (0.666667 - 0.026481)) = s(0.344357) = 0.585249. KL: the
    #   student has s(a ln 3) = s(0.590946) = 0.643582 for class 2, the teacher 3/4:
    #   ∂z = (-0.414751, 0.414751, -0.212836, 0.212836), ∂w = a ∂z, ∂a = ∂z · w = -0.499343.
    method = FedVLS(lam=2.0, suppression=0, local=LocalTraining(lr=1.0))
    model = SplitModel(nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 4, bias=False)))
    a, w = (model.module.get_parameter(f"{layer}.weight") for layer in (0, 1))
    with torch.no_grad():
        a.fill_(1.0)
        w.copy_(torch.tensor([[0.0], [math.log(2)], [math.log(3)], [0.0]]))
    local = started(method, [0, 1], model)
    x, y = torch.ones(1, 1), torch.tensor([0])
    for _ in range(2):
        method.step(local, x, y)
    expected = [0.889762, -0.196615, 1.213097, -0.114485]
    assert w.flatten().tolist() == pytest.approx(expected, abs=2e-6)
    assert float(a.detach()) == pytest.approx(1.037245, abs=2e-6)


@pytest.mark.parametrize("model", [tiny.plain_model, tiny.norm_model, tiny.dropout_model])
def test_without_its_terms_it_is_bsm_and_fedavg_to_the_bit(model: Any) -> None:
    off: dict[str, Any] = {"local": tiny.quick(momentum=0.9), "lam": 0, "suppression": 0}
    ours = run(tiny.experiment(FedVLS(**off), model)).digest
    assert ours == run(tiny.experiment(BSM(local=off["local"]), model)).digest
    plain = run(tiny.experiment(FedVLS(loss=CrossEntropy(), **off), model)).digest
    assert plain == run(tiny.experiment(FedAvg(local=off["local"]), model)).digest
    for part in ("lam", "suppression"):
        assert run(tiny.experiment(FedVLS(**{**off, part: 0.5}), model)).digest != ours


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_the_teacher_is_of_the_chosen_mode_and_stays(mode: Any) -> None:
    # Prepare
    method = FedVLS(teacher_mode=mode, local=LocalTraining(lr=0.1))
    layers = nn.BatchNorm1d(1), nn.Linear(1, 3), nn.Linear(3, 4)
    model = SplitModel(nn.Sequential(*layers))
    local = started(method, TWO_HELD, model)
    model.train()
    received = model.tensors()

    # Execute
    method.step(local, torch.tensor([[3.0], [5.0]]), torch.tensor([0, 1]))

    # Assert
    teacher: SplitModel = local.aux.teacher
    assert teacher.training == (mode == "train")
    assert torch.equal(teacher.tensors()["1.weight"], received["1.weight"])
    assert not torch.equal(model.tensors()["1.weight"], received["1.weight"])


@pytest.mark.parametrize(
    "labels", [[], [1], [1, 1, 1], ALL_HELD], ids=lambda y: f"{len(y)} samples"
)
def test_awkward_clients_stay_finite(labels: list[int]) -> None:
    x = [[float(i)] for i in range(len(labels) + 1)]
    data = tiny.federation(x, [*labels, 0], [range(len(labels))], classes=4)
    model = SplitModel(nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 3), nn.Linear(3, 4)))
    payload = Payload(grouped("model", model.tensors()))
    reply = FedVLS(local=tiny.quick(epochs=2)).train(payload, tiny.client(data, 0, model))
    assert reply.scalars["samples"] == len(labels)
    assert all(bool(torch.isfinite(t).all()) for t in reply.tensors.values())


@pytest.mark.parametrize("field", ["lam", "suppression"])
def test_a_negative_weight_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        FedVLS.model_validate({field: -0.1})
