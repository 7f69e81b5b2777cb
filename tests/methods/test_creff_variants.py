"""CReFF, number by number: where features and heads begin, and one step of each on the server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor, nn

from fedtail import CReFF, LocalTraining
from fedtail.methods.creff import CReFFState, fresh_head
from fedtail.models import SplitModel
from fedtail.protocol import Payload, Server, Update

CLASSES, WIDTH = 3, 2


def model_of(bias: bool = True) -> SplitModel:
    """Features are the inputs themselves."""
    model = SplitModel(nn.Sequential(nn.Identity(), nn.Linear(WIDTH, CLASSES, bias=bias)))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


def server_of(model: SplitModel, **fields: Any) -> Server:
    return tiny.server(model, 1, **{"num_classes": CLASSES, "rounds": 9, **fields})


def creff(**fields: Any) -> CReFF:
    return CReFF(local=LocalTraining(lr=0.1), **{"features": 2, **fields})


def update(model: SplitModel, weight: Tensor, bias: Tensor | None) -> Update:
    """Return the update of a client that holds class 0 alone, and asks for these gradients."""
    tensors = {f"model/{n}": t for n, t in model.tensors().items()}
    tensors |= {"grad/classes": torch.tensor([0]), "grad/weight": weight[None]}
    if bias is not None:
        tensors["grad/bias"] = bias[None]
    return Update(0, Payload(tensors, {"samples": 1}))


def at_zero(chosen: CReFF, model: SplitModel, s: CReFFState) -> CReFFState:
    """Return the state with v̂ = 0 and all features (1, 0): p = 1/3 for every class."""
    features = torch.tensor([1.0, 0.0]).repeat(CLASSES, chosen.features, 1)
    return replace(s, features=features, head={n: torch.zeros_like(t) for n, t in s.model.items()})


# At `at_zero` the features of class 0 give the residual r = (-2/3, 1/3, 1/3), the weight the
# gradient r (1, 0) and the bias r itself.
R = torch.tensor([-2 / 3, 1 / 3, 1 / 3])
G = R[:, None] * torch.tensor([1.0, 0.0])


def test_features_are_drawn_from_a_normal_distribution() -> None:
    # 3 · 2 · 1000 numbers: the mean varies by 1 / √6000 = 0.013, the deviation by 1 / √12000.
    model = model_of()
    features = creff(features=1000).init(model, server_of(model)).features
    assert features is not None
    assert features.shape == (CLASSES, 1000, WIDTH)
    assert float(features.mean()) == pytest.approx(0, abs=4 * 0.013)
    assert float(features.std()) == pytest.approx(1, abs=4 * 0.0092)


def test_every_round_begins_with_another_head() -> None:
    # J = 0: what is re-trained is the head of the round as it was drawn, U(-1/√2, 1/√2).
    model, chosen = model_of(), creff(head_epochs=0)
    features = torch.zeros(CLASSES, 2, WIDTH)
    first, second, again = (
        chosen.retrain(features, server_of(model, round=t))["1.weight"] for t in (1, 2, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert torch.equal(first, fresh_head(server_of(model), model).weight)
    assert float(first.abs().max()) <= WIDTH**-0.5


@pytest.mark.parametrize("steps", [0, 3])
def test_the_head_is_trained_on_the_new_features_for_j_epochs(steps: int) -> None:
    # Prepare: J = 2 epochs, each one batch of all C · m features: W ← W - η mean of (p - e_y) hᵀ.
    model = model_of()
    chosen = creff(match_steps=steps, match_lr=0.5, head_epochs=2, head_batch=100, head_lr=0.3)
    server = server_of(model)
    s = chosen.init(model, server)
    # The target is at an angle to the gradient of the features, so that matching moves them.
    target = update(model, G.roll(1, dims=1) + G, R.roll(1))

    # Execute
    new = tiny.after(chosen, s, [target], server)

    # Assert
    assert s.features is not None
    assert new.features is not None
    assert new.head is not None
    assert torch.equal(new.features, s.features) == (steps == 0)
    h = new.features.reshape(-1, WIDTH)
    unit = torch.eye(CLASSES).repeat_interleave(2, dim=0)
    weight, bias = fresh_head(server, model)
    assert bias is not None
    for _ in range(2):
        r = ((h @ weight.T + bias).softmax(dim=1) - unit) / len(h)
        weight, bias = weight - 0.3 * r.T @ h, bias - 0.3 * r.sum(dim=0)
    torch.testing.assert_close(new.head["1.weight"], weight)
    torch.testing.assert_close(new.head["1.bias"], bias)


@pytest.mark.parametrize(
    ("matching", "bias", "expected"),
    [
        # With ‖g_j‖‖t_j‖ = 1e-6 in every row, eps = 1e-6 makes the cosine 1/2: three rows and the
        # bias give 4 · 1/2, three rows alone 3 · 1/2.
        ("code", True, 2.0),
        ("code", False, 1.5),
        # Without eps the cosine is 1.
        ("paper", True, 0.0),
    ],
)
def test_the_loss_of_the_code_has_a_row_for_the_bias_and_an_eps(
    matching: str, bias: bool, expected: float
) -> None:
    model = model_of(bias)
    chosen = creff(matching=matching, match_steps=0, head_epochs=0)
    server = server_of(model)
    s = at_zero(chosen, model, chosen.init(model, server))
    weight = 1e-6 * G / (G**2).sum(dim=1, keepdim=True)
    tiny.after(
        chosen, s, [update(model, weight, 1e-6 * R / (R**2).sum() if bias else None)], server
    )
    # Float32 has seven digits, and of 1 - cos six are left.
    assert float(server.logged["match_loss"]) == pytest.approx(expected, abs=1e-5)
    assert float(server.logged["dissimilarity_after"]) == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("matching", ["code", "paper"])
def test_one_step_of_matching_by_autograd(matching: str) -> None:
    # Code: Σ_j 1 - cos of three rows and the bias; paper: the mean over the three rows.
    model = model_of()
    chosen = creff(matching=matching, match_steps=1, match_lr=0.5, head_epochs=0)
    server = server_of(model)
    s = chosen.init(model, server)
    assert s.features is not None
    assert s.head is not None
    weight = torch.tensor([[1.0, 2.0], [-1.0, 0.5], [0.0, -1.0]])
    bias = torch.tensor([1.0, -2.0, 1.0])
    new = tiny.after(chosen, s, [update(model, weight, bias)], server).features

    x = s.features[0].clone().requires_grad_()
    r = (x @ s.head["1.weight"].T + s.head["1.bias"]).softmax(dim=1) - torch.eye(CLASSES)[0]
    g, g_bias = r.T @ x / 2, r.mean(dim=0)
    loss = (1 - nn.functional.cosine_similarity(g, weight, dim=1)).sum()
    if matching == "code":
        loss = loss + 1 - nn.functional.cosine_similarity(g_bias, bias, dim=0)
    (slope,) = torch.autograd.grad(loss / (1 if matching == "code" else CLASSES), x)
    assert new is not None
    # The code's eps of 1e-6 is below float32's resolution of products of this size.
    torch.testing.assert_close(new[0], s.features[0] - 0.5 * slope, rtol=1e-4, atol=1e-5)


def test_the_logged_dissimilarity_is_a_mean_over_classes() -> None:
    # Classes 0 and 1 are asked for the opposite of what their features give: 1 - cos = 2 for each.
    model, chosen = model_of(), creff(match_steps=0, head_epochs=0)
    server = server_of(model)
    s = at_zero(chosen, model, chosen.init(model, server))
    both = {
        "grad/classes": torch.tensor([0, 1]),
        "grad/weight": -torch.stack([G, G.roll(1, dims=0)]),
        "grad/bias": -torch.stack([R, R.roll(1)]),
    }
    sent = {f"model/{n}": t for n, t in model.tensors().items()} | both
    tiny.after(chosen, s, [Update(0, Payload(sent, {"samples": 1}))], server)
    for name in ("dissimilarity_before", "dissimilarity_after"):
        assert float(server.logged[name]) == pytest.approx(2)
