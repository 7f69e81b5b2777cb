"""The body in bfloat16 while it trains; weights, classifier, losses and tests in float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from fedtail import Experiment, FedtailError, run
from fedtail.models import SplitModel
from fedtail.models.ensemble import Ensemble
from fedtail.models.experts import ExpertModel
from fedtail.setting import prepare

W = 1 + 2**-9
"""Not in bfloat16, which has eight bits of it: there it is 1."""
X = torch.tensor([[3.0]])


def line() -> nn.Linear:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, W)
    return layer


def models() -> dict[str, SplitModel]:
    plain = SplitModel(nn.Sequential(line(), line()))
    ensemble = Ensemble(plain, 2)
    ensemble.load({name: torch.full_like(t, W) for name, t in ensemble.tensors().items()})
    return {"plain": plain, "experts": ExpertModel(line(), [line()], [line()]), "many": ensemble}


def test_only_the_body_is_rounded_and_only_in_training() -> None:
    model = models()["plain"]
    model.compute_in(torch.bfloat16)
    logits, features, _ = model.train().output(X)
    # The body has the weight 1 there, the classifier its own: 3 · 1, then 3 · W, which float32 has.
    assert (features.item(), logits.item()) == (3.0, 3 * W)
    assert features.dtype == logits.dtype == torch.float32
    assert torch.equal(model(X), logits)
    assert torch.equal(model.output(X, features=False).logits, logits)
    logits, features, _ = model.eval().output(X)
    assert (features.item(), logits.item()) == (3 * W, 3 * W * W)


def test_experts_share_a_rounded_body() -> None:
    model = models()["experts"]
    model.compute_in(torch.bfloat16)
    assert isinstance(model, ExpertModel)
    # Trunk and expert are the body: 3 · 1 · 1; the head is not.
    for out in (model.train().output(X), model.output_of(0, X)):
        assert (out.features.item(), out.logits.item()) == (3.0, 3 * W)
    assert model(X).item() == 3 * W
    assert model.eval().output(X).features.item() == pytest.approx(3 * W * W, rel=1e-7)


def test_members_are_rounded_each() -> None:
    model = models()["many"]
    model.compute_in(torch.bfloat16)
    out = model.train().output(X)
    assert out.experts is not None
    assert out.features.tolist() == [[3.0, 3.0]]
    assert out.experts.flatten().tolist() == [3 * W, 3 * W]
    assert model.eval().output(X).features.tolist() == [[3 * W, 3 * W]]


@pytest.mark.parametrize("kind", models())
def test_gradients_reach_weights_of_float32(kind: str) -> None:
    model = models()[kind]
    model.compute_in(torch.bfloat16)
    torch.autograd.backward(model.train().output(X).features.sum())
    first = next(model.parameters())
    assert first.grad is not None
    assert first.dtype == first.grad.dtype == torch.float32
    assert first.grad.item() == 3.0  # d(w·3)/dw; whatever follows has the weight 1


def small(**fields: object) -> Experiment:
    return Experiment(model="digits_cnn", clients=4, rounds=2, **fields)


def test_a_run_learns_as_in_float32_and_is_another_one() -> None:
    whole, half = (run(small(precision=p)) for p in ("float32", "bfloat16"))
    assert whole.digest != half.digest
    # Rounded to three digits, weights move about as far; the test set has 360 digits.
    assert abs(whole.history[-1]["accuracy"] - half.history[-1]["accuracy"]) < 0.1


def test_workers_have_it_too() -> None:
    alone, beside = (run(small(precision="bfloat16", workers=n)) for n in (0, 1))
    assert alone.digest == beside.digest


def test_clients_do_not_train_together_in_it() -> None:
    setting = prepare(small(precision="bfloat16", method="fedavg", together=2))
    assert setting.model.precision == torch.bfloat16
    whole = run(small(precision="bfloat16", method="fedavg", together=0))
    asked = run(small(precision="bfloat16", method="fedavg", together=2))
    assert asked.digest == whole.digest


@pytest.mark.parametrize("method", ["fedalign", "gbme", "redgrape", "ride"])
def test_methods_that_look_into_the_network_train(method: str) -> None:
    assert run(small(precision="bfloat16", method=method)).history[-1]["loss"] < 10


def test_a_run_is_not_resumed_in_another(tmp_path: Path) -> None:
    run(small(), out=tmp_path / "run")
    with pytest.raises(FedtailError, match="another 'precision'"):
        run(small(precision="bfloat16"), out=tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("has", "slow"),
    [
        ({"architecture": "x86_64", "avx512_bf16": False, "amx_bf16": False}, True),
        ({"architecture": "x86_64", "avx512_bf16": True, "amx_bf16": False}, False),
        ({"architecture": "x86_64", "avx512_bf16": False, "amx_bf16": True}, False),
        ({"architecture": "aarch64"}, False),  # not known
    ],
)
def test_a_processor_without_it_is_said(
    has: dict[str, object], slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has)
    said = prepare(small(precision="bfloat16")).remarks()
    assert any("no instructions for bfloat16" in each for each in said) is slow
    assert not any("bfloat16" in each for each in prepare(small()).remarks())


def test_what_is_not_offered_is_refused() -> None:
    with pytest.raises(FedtailError, match=r"precision.*float16.*'float32' or 'bfloat16'"):
        small(precision="float16")
