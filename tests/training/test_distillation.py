"""Distillation on the server: the step by hand, the cosine, and what it leaves alone."""

from __future__ import annotations

import math

import pytest
import tiny
import torch
from torch import nn

from fedtail import FedtailError
from fedtail.models import SplitModel
from fedtail.training import LocalTraining
from fedtail.training.distillation import distil, divergence, held, predictions

X = torch.ones(1, 1)
Q = torch.tensor([[0.8, 0.2]])


def zero() -> SplitModel:
    model = SplitModel(nn.Linear(1, 2, bias=False))
    nn.init.zeros_(model.classifier.get_parameter("weight"))
    return model


def learned(steps: int, temperature: float = 1.0, cosine: bool = False) -> list[float]:
    model = zero()
    training = LocalTraining(lr=1.0, steps=steps, batch_size=4)
    server = tiny.server(model, 1)
    distil(server, X, Q, training, temperature=temperature, cosine=cosine)
    return model.tensors()["weight"][:, 0].tolist()


def test_one_step_by_hand() -> None:
    # At W = 0 the student says (1/2, 1/2). The gradient of KL(q ‖ p) in the logits is p - q.
    assert learned(1) == pytest.approx([0.3, -0.3])


@pytest.mark.parametrize(("clip", "length"), [(None, 0.3), (1.0, 0.3), (0.1, 0.1 / math.sqrt(2))])
def test_a_gradient_is_clipped_as_a_clients_is(clip: float | None, length: float) -> None:
    # The gradient (-0.3, 0.3) has the norm 0.424: 0.1 leaves 0.1 / √2 of either number.
    training, model = LocalTraining(lr=1.0, steps=1, batch_size=4, clip=clip), zero()
    distil(tiny.server(model, 1), X, Q, training)
    assert model.tensors()["weight"][:, 0].tolist() == pytest.approx([length, -length], rel=1e-5)


def test_temperature_by_hand() -> None:
    # T² KL(q ‖ softmax(z/T)) has the gradient T (p - q): twice as much for T = 2.
    assert learned(1, temperature=2.0) == pytest.approx([0.6, -0.6])


def test_the_rate_falls_along_a_cosine() -> None:
    # Two steps, factors 1 and (1 + cos(π/2)) / 2 = 1/2. After the first W = (0.3, -0.3), where
    # p_0 = sigmoid(0.6) = 0.645656, so the second adds (0.8 - 0.645656) / 2 = 0.077172.
    assert learned(2, cosine=True) == pytest.approx([0.377172, -0.377172], abs=1e-6)
    # Without it the second step is twice as long.
    assert learned(2) == pytest.approx([0.454344, -0.454344], abs=1e-6)


def test_divergence_by_hand() -> None:
    # 0.8 ln(0.8 / 0.5) + 0.2 ln(0.2 / 0.5) = 0.376003 - 0.183258; certain targets have no NaN.
    assert float(divergence(torch.zeros(1, 2), Q)) == pytest.approx(0.192745, abs=1e-6)
    sure = divergence(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]))
    assert float(sure) == pytest.approx(0.693147, abs=1e-6)


def test_it_stops_when_it_is_told() -> None:
    seen: list[int] = []

    def third(step: int) -> bool:
        seen.append(step)
        return step == 3

    training = LocalTraining(steps=10, batch_size=4)
    distil(tiny.server(zero(), 1), X, Q, training, after_step=third)
    assert seen == [1, 2, 3]


def test_one_sample_and_batch_norm() -> None:
    # One sample has no variance: BatchNorm takes its running statistics, and keeps them.
    model = SplitModel(nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 2)))
    distil(tiny.server(model, 1), X, Q, LocalTraining(steps=2, batch_size=4))
    assert model.tensors()["0.running_mean"].tolist() == [0.0]
    assert bool(torch.isfinite(model.tensors()["1.weight"]).all())


def test_it_leaves_no_gradient_and_no_global_draw() -> None:
    model = SplitModel(nn.Sequential(nn.Dropout(0.5), nn.Linear(1, 2)))
    before = tiny.global_streams()
    distil(tiny.server(model, 1), X, Q, LocalTraining(steps=2, batch_size=4))
    assert tiny.global_streams() == before
    assert all(p.grad is None for p in model.parameters())


def test_predictions_do_not_train() -> None:
    model = SplitModel(nn.Sequential(nn.BatchNorm1d(1), nn.Dropout(0.5), nn.Linear(1, 2)))
    start = model.tensors()
    x = torch.linspace(-1, 1, 7)[:, None]
    found = predictions(model, x)
    assert torch.equal(found, predictions(model, x, start))
    assert all(torch.equal(model.tensors()[name], t) for name, t in start.items())


def test_without_samples_it_says_so() -> None:
    with pytest.raises(FedtailError, match="server_per_class"):
        held(tiny.server(zero(), 1))
