"""FedAvg with another loss: one step by hand with each, and when it is another method."""

from __future__ import annotations

import math
from typing import Any

import pytest
import tiny
import torch
from torch import nn

from fedtail import (
    BSM,
    LADE,
    BalancedSoftmax,
    FedAvg,
    FedFocal,
    FedRS,
    Focal,
    GlobalPrior,
    LADELoss,
    LocalPrior,
    LocalTraining,
    Method,
    ModelState,
    RestrictedSoftmax,
    run,
)
from fedtail.models import SplitModel
from fedtail.protocol import Payload, grouped
from fedtail.training import ClassPrior


@pytest.mark.parametrize(
    ("prior", "share"), [(LocalPrior(), [1 / 4, 3 / 4]), (GlobalPrior(), [3 / 4, 1 / 4])]
)
def test_bsm_one_step_by_hand(prior: ClassPrior, share: list[float]) -> None:
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


def test_bsm_is_fedavg_with_that_loss() -> None:
    ours = run(tiny.experiment(BSM(local=tiny.quick()), tiny.norm_model))
    same: FedAvg[ModelState] = FedAvg(loss=BalancedSoftmax(), local=tiny.quick())
    assert ours.digest == run(tiny.experiment(same, tiny.norm_model)).digest


def test_fed_focal_one_step_by_hand() -> None:
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
def test_fed_focal_without_gamma_it_is_fedavg_to_the_bit(model: Any) -> None:
    local = tiny.quick(momentum=0.9)
    ours = run(tiny.experiment(FedFocal(loss=Focal(gamma=0), local=local), model))
    assert ours.digest == run(tiny.experiment(FedAvg(local=local), model)).digest


def test_fed_focal_the_papers_gamma_and_how_to_change_it() -> None:
    assert FedFocal().loss == Focal(gamma=2)
    named: Method[Any] = Method.model_validate(
        {"name": "fed-focal", "loss": {"gamma": 0.5, "detach": True}}
    )
    assert named == FedFocal(loss=Focal(gamma=0.5, detach=True))


def test_fedrs_one_step_by_hand() -> None:
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
def test_fedrs_with_alpha_1_it_is_fedavg_to_the_bit(model: Any, scaling: str) -> None:
    loss = RestrictedSoftmax.model_validate({"alpha": 1, "scaling": scaling})
    ours = run(tiny.experiment(FedRS(loss=loss, local=tiny.quick()), model))
    assert ours.digest == run(tiny.experiment(FedAvg(local=tiny.quick()), model)).digest


def test_fedrs_with_alpha_0_what_nobody_has_stays_as_it_was() -> None:
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


def test_fedrs_the_papers_alpha_and_how_to_change_it() -> None:
    assert FedRS().loss == RestrictedSoftmax(alpha=0.5)
    named: Method[Any] = Method.model_validate(
        {"name": "fedrs", "loss": {"alpha": 0.9, "scaling": "counts"}}
    )
    assert named == FedRS(loss=RestrictedSoftmax(alpha=0.9, scaling="counts"))


def test_lade_one_step_by_hand() -> None:
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
def test_lade_without_lambda_it_is_bsm_to_the_bit(model: Any, prior: str) -> None:
    fields = {"prior": prior, "local": tiny.quick()}
    ours: Method[Any] = Method.model_validate({"name": "lade", "loss": {"lam": 0}, **fields})
    same: Method[Any] = Method.model_validate({"name": "bsm", **fields})
    assert isinstance(same, BSM)
    found, expected = (run(tiny.experiment(method, model)).digest for method in (ours, same))
    assert found == expected
