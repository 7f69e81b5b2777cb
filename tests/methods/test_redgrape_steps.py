"""RedGrape: the rate of the extra step, what is augmented, and when nothing is re-balanced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tiny
import torch
from redgrape_toys import STEP, cloud, network, sent, started
from torch import nn

from fedtail.data.augment import Augment
from fedtail.data.dataset import Dataset, Samples
from fedtail.data.federation import Federation
from fedtail.forms import defect
from fedtail.methods.redgrape import RedGrape
from fedtail.models import SplitModel
from fedtail.protocol import Update
from fedtail.rng import contained
from fedtail.training import Linear


def test_the_extra_step_follows_the_schedule_of_the_rate() -> None:
    # Linear from 1 over four rounds: round 3 has half the rate. g_bal is G = (1, 0) up to its
    # length, g_local = mean of p - e_y = (-1/4, 1/4) from zero, ‖g_local‖ = √2 / 4:
    # W = -η (g_local + λ ‖g_local‖ (1, 0)).
    data = tiny.federation([[1.0]] * 4, [0, 0, 0, 1], [range(4)])
    method = RedGrape(per_class=5, lam=0.5, second_head=False, local=STEP.but(schedule=Linear()))
    model = SplitModel(nn.Sequential(nn.Linear(1, 2, bias=False)))
    nn.init.zeros_(model.module.get_parameter("0.weight"))
    payload = sent(model, {0: [[1.0], [0.0]], 1: [[1.0], [0.0]]})
    for number, rate in ((1, 1.0), (3, 0.5)):
        found = method.train(payload, tiny.client(data, 0, model, round=number, rounds=4))
        expected = [rate * (0.25 - 0.5 * 2**0.5 / 4), -rate * 0.25]
        weights = found.tensors["model/0.weight"].flatten().tolist()
        assert weights == pytest.approx(expected, rel=1e-5)


def mirrored() -> Federation:
    """Return a client with 16 images (0, 1) of each of two classes; about half become (1, 0)."""
    x = torch.tensor([0, 255], dtype=torch.uint8).expand(32, 1, 1, 2)
    samples = Samples(x.clone(), torch.arange(2).repeat_interleave(16))
    parts = [torch.arange(32).numpy()]
    return Federation(Dataset(samples, samples, ("a", "b")), parts, Augment(flip=True))


@pytest.mark.parametrize("augmented", [True, False])
def test_balanced_set_and_prototypes_are_augmented(augmented: bool) -> None:
    # The features are the two pixels: without a flip the first of them is always 0, and so is the
    # first column of every class gradient; at zero the second is (p - e_c) times the mean pixel.
    method = RedGrape(per_class=16, augmented=augmented, local=STEP)
    with contained(0):
        model = method.build_model(SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(2, 2))))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    aux = started(method, sent(model), tiny.client(mirrored(), 0, model)).aux
    left, right = aux.x.flatten(1).T
    assert torch.equal(left + right, torch.ones(32))
    # 32 fair coins that all fall on one side: once in four milliards.
    assert (0 < int(left.sum()) < 32) == augmented
    assert augmented or int(left.sum()) == 0
    for c, gradient in enumerate(aux.gradients["weight"]):
        residual = torch.tensor([0.5, 0.5]) - torch.eye(2)[c]
        torch.testing.assert_close(gradient.sum(dim=1), residual)
        assert bool((gradient[:, 0] != 0).all()) == augmented


@pytest.mark.parametrize(("number", "fedavg"), [(1, True), (2, True), (3, False), (4, False)])
def test_the_first_stage_has_no_extra_step_even_with_real_data(number: int, fedavg: bool) -> None:
    # Rounds 1 and 2 of 4 are FedAvg's, though real data alone could balance W.
    fields: dict[str, Any] = {"per_class": 2, "without_prototypes": "real", "local": STEP}
    method = RedGrape(two_stage=0.5, **fields)
    with contained(0):
        model = network(method)
    client = tiny.client(cloud([0, 0, 0, 1, 2, 2]), 0, model, round=number, rounds=4)
    run = started(method, sent(model), client)
    assert run.aux.held == 2
    assert run.aux.strength == (0.0 if fedavg else 0.1)
    assert len(run.aux.gradients["classes"]) == (0 if fedavg else 3)
    sent_back = method.train(sent(model), client)
    assert sent_back.scalars["balanced_classes"] == (0 if fedavg else 2)


def test_what_is_logged_is_of_the_weight_alone() -> None:
    # x = 2, p = (1/2, 1/2): g_local = 2 (-1/2, 1/2) for the weight, norm √2, and half of it for
    # the bias. Prototypes (1, 0) of both classes: g_bal = (1, 0) for both, at 135°.
    data = tiny.federation([[2.0]], [0], [[0]])
    method = RedGrape(per_class=5, second_head=False, local=STEP)
    model = SplitModel(nn.Sequential(nn.Linear(1, 2)))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    payload = sent(model, {0: [[1.0], [0.0]], 1: [[1.0], [0.0]]})
    found = method.train(payload, tiny.client(data, 0, model)).scalars
    assert all(type(found[n]) is float for n in ("local_norm", "balanced_norm", "cosine"))
    assert found["local_norm"] == pytest.approx(2**0.5)
    assert found["balanced_norm"] == pytest.approx(1)
    assert found["cosine"] == pytest.approx(-(0.5**0.5))


def test_the_strength_of_the_round_is_logged() -> None:
    # Linear from 0.2 over four rounds: half of it in round 3.
    method = RedGrape(lam=0.2, lam_schedule=Linear(), second_head=False, local=STEP)
    model = SplitModel(nn.Sequential(nn.Linear(1, 2)))
    server = tiny.server(model, 1, round=3, rounds=4)
    data = tiny.federation([[2.0]], [0], [[0]])
    state = method.init(model, server)
    task = method.broadcast(state, server)
    update = Update(0, method.train(task, tiny.client(data, 0, model, round=3, rounds=4)))
    tiny.after(method, state, [update], server)
    assert server.logged["lam"] == pytest.approx(0.1)


@pytest.mark.parametrize(("name", "sentence"), [("local_norm", "from 0"), ("cosine", "")])
def test_a_norm_is_not_negative(name: str, sentence: str) -> None:
    method = RedGrape(local=STEP)
    model = network(method)
    task = sent(model)
    answer = method.train(task, tiny.client(cloud([0, 1]), 0, model))
    told = replace(answer, scalars={**answer.scalars, name: -0.5})
    assert sentence in defect(told, method.train_form(task, model, 3), None)
    assert (defect(told, method.train_form(task, model, 3), None) == "") == (not sentence)


@pytest.mark.parametrize("per_class", [1, 5])
def test_a_frozen_bias_of_the_head_stays(per_class: int) -> None:
    data = tiny.federation([[2.0]], [0], [[0]])
    method = RedGrape(per_class=per_class, second_head=False, local=STEP)
    model = SplitModel(nn.Sequential(nn.Linear(1, 2)))
    model.module.get_parameter("0.bias").requires_grad_(False)
    before = model.tensors()
    payload = sent(model, {0: [[1.0], [0.0]], 1: [[1.0], [0.0]]})
    found = method.train(payload, tiny.client(data, 0, model)).group("model")
    assert torch.equal(found["0.bias"], before["0.bias"])
    assert not torch.equal(found["0.weight"], before["0.weight"])


def test_a_frozen_head_stays() -> None:
    method = RedGrape(per_class=1, second_head=False, local=STEP)
    with contained(0):
        model = network(method)
    model.classifier.requires_grad_(False)
    before = model.tensors()
    task = sent(model, {2: [[1.0] * 4] * 3})
    found = method.train(task, tiny.client(cloud([0, 1]), 0, model)).group("model")
    assert torch.equal(found["3.weight"], before["3.weight"])
    assert not torch.equal(found["0.weight"], before["0.weight"])
