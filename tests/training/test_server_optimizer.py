"""Server optimisers by hand, against torch's own, and inside FedAvg."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor, nn

from fedtail import (
    FedAvg,
    FedLC,
    FedtailError,
    ServerAdagrad,
    ServerAdam,
    ServerOptimizer,
    ServerSGD,
    ServerYogi,
    run,
)
from fedtail.callbacks import Callback, Record
from fedtail.methods import ModelState
from fedtail.models import SplitModel
from fedtail.protocol import Payload, Update, grouped
from fedtail.state import flatten, restore

ALL: tuple[ServerOptimizer, ...] = (
    ServerSGD(momentum=0.9),
    ServerAdam(),
    ServerYogi(),
    ServerAdagrad(),
)


def follow(optimizer: ServerOptimizer, deltas: Sequence[Tensor]) -> list[Tensor]:
    """Return the values of a parameter that starts at 0 and sees these Δ, step by step."""
    w, memory = torch.zeros_like(deltas[0]), dict[str, Tensor]()
    values = []
    for delta in deltas:
        w, memory = optimizer.step(w, w + delta, memory)
        values.append(w)
    return values


def scalars(optimizer: ServerOptimizer, *deltas: float) -> list[float]:
    return [float(w) for w in follow(optimizer, [torch.tensor(d) for d in deltas])]


def test_the_default_is_the_average_itself_to_the_last_bit() -> None:
    generator = torch.Generator().manual_seed(0)
    w, mean = (torch.randn(1000, generator=generator) for _ in range(2))
    new, memory = ServerSGD().step(w, mean, {})
    assert new is mean
    assert memory == {}
    assert not torch.equal(w + (mean - w), mean)  # what a careless one would give


def test_momentum_by_hand() -> None:
    # β = 1/2, η = 2, Δ = 1, then 2: v = 1, w = 2; v = 1/2 + 2 = 5/2, w = 2 + 5 = 7.
    assert scalars(ServerSGD(lr=2.0, momentum=0.5), 1.0, 2.0) == [2.0, 7.0]


def test_nesterov_by_hand() -> None:
    # v = 1, w = 2 (1 + 1/2) = 3; v = 5/2, w = 3 + 2 (2 + 5/4) = 9.5.
    assert scalars(ServerSGD(lr=2.0, momentum=0.5, nesterov=True), 1.0, 2.0) == [3.0, 9.5]


def test_adam_by_hand() -> None:
    # β₁ = β₂ = 1/2, τ = 1, η = 1; v begins with τ² = 1.
    # Δ = 1: m = 1/2, v = 1/2 + 1/2 = 1, w = (1/2) / 2 = 1/4.
    # Δ = √7: m = 1/4 + √7/2, v = 1/2 + 7/2 = 4, w = 1/4 + m / 3.
    root = 7**0.5
    values = scalars(ServerAdam(lr=1.0, beta1=0.5, beta2=0.5, tau=1.0), 1.0, root)
    assert values == pytest.approx([0.25, 0.25 + (0.25 + root / 2) / 3])


def test_yogi_by_hand() -> None:
    # β₁ = 0, β₂ = 1/2, τ = 1, η = 1; v begins with 1.
    # Δ = 2: v = 1 + (1/2) 4 = 3 (Δ² is larger), w = 2 / (√3 + 1).
    # Δ = 1: v = 3 - (1/2) 1 = 5/2 (Δ² is smaller; Adam would give 2), w = w + 1 / (√(5/2) + 1).
    values = scalars(ServerYogi(lr=1.0, beta1=0.0, beta2=0.5, tau=1.0), 2.0, 1.0)
    first = 2 / (3**0.5 + 1)
    assert values == pytest.approx([first, first + 1 / (2.5**0.5 + 1)])


def test_adagrad_by_hand() -> None:
    # β₁ = 0, τ = 1, η = 1; v begins with 1: v = 1 + 3 = 4 and 4 + 5 = 9, w = √3 / 3 + √5 / 4.
    values = scalars(ServerAdagrad(lr=1.0, tau=1.0), 3**0.5, 5**0.5)
    assert values == pytest.approx([3**0.5 / 3, 3**0.5 / 3 + 5**0.5 / 4])


@pytest.mark.parametrize(
    ("ours", "kind", "theirs"),
    [
        (ServerSGD(lr=0.3), torch.optim.SGD, {"lr": 0.3}),
        (ServerSGD(lr=0.3, momentum=0.9), torch.optim.SGD, {"lr": 0.3, "momentum": 0.9}),
        (
            ServerSGD(lr=0.3, momentum=0.9, nesterov=True),
            torch.optim.SGD,
            {"lr": 0.3, "momentum": 0.9, "nesterov": True},
        ),
        (
            ServerAdam(lr=0.3, beta1=0.8, beta2=0.95, tau=1e-2, bias_correction=True),
            torch.optim.Adam,
            {"lr": 0.3, "betas": (0.8, 0.95), "eps": 1e-2},
        ),
        (
            ServerAdagrad(lr=0.3, tau=1e-2),
            torch.optim.Adagrad,
            {"lr": 0.3, "eps": 1e-2, "initial_accumulator_value": 1e-4},
        ),
    ],
)
def test_torch_gives_the_same(ours: ServerOptimizer, kind: Any, theirs: dict[str, Any]) -> None:
    # torch descends along a gradient: -Δ.
    generator = torch.Generator().manual_seed(1)
    deltas = [torch.randn(5, generator=generator) for _ in range(6)]
    parameter = nn.Parameter(torch.zeros(5))
    optimizer = kind([parameter], **theirs)
    for delta, value in zip(deltas, follow(ours, deltas), strict=True):
        parameter.grad = -delta
        optimizer.step()
        torch.testing.assert_close(value, parameter.detach(), rtol=1e-5, atol=1e-6)


def test_v_of_yogi_stays_above_zero() -> None:
    # v - (1 - β₂) Δ² with v > Δ² is more than β₂ Δ²: √v is always a number.
    generator = torch.Generator().manual_seed(2)
    deltas = [torch.randn(50, generator=generator) * 10.0**-i for i in range(8)]
    values = follow(ServerYogi(), [*deltas, *deltas[::-1]])
    assert all(bool(torch.isfinite(value).all()) for value in values)


# In FedAvg


def normed() -> SplitModel:
    return SplitModel(nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 2, bias=False)))


def tensors(weight: float, variance: float) -> dict[str, Tensor]:
    return {
        "0.weight": torch.full((1,), weight),
        "0.bias": torch.zeros(1),
        "0.running_mean": torch.zeros(1),
        "0.running_var": torch.full((1,), variance),
        "0.num_batches_tracked": torch.tensor(1),
        "1.weight": torch.zeros(2, 1),
    }


def update(k: int, n: int, weight: float, variance: float) -> Update:
    return Update(k, Payload(grouped("model", tensors(weight, variance)), {"samples": n}))


@pytest.mark.parametrize("optimizer", ALL, ids=lambda o: o.name)
def test_variances_take_the_average_itself(optimizer: ServerOptimizer) -> None:
    # Momentum on buffers would give 4 → 1 (v = -3) → 0.5 - 2.7 < 0. The average is the average:
    # (1 · 0.25 + 3 · 1.25) / 4 = 1, then 0.5.
    model = normed()
    server = tiny.server(model, 2)
    method = FedAvg[ModelState](server_optimizer=optimizer)
    state = ModelState(tensors(0.0, 4.0))
    state = tiny.after(method, state, [update(0, 1, 1.0, 0.25), update(1, 3, 1.0, 1.25)], server)
    assert float(state.model["0.running_var"]) == 1.0
    state = tiny.after(method, state, [update(0, 1, 1.0, 0.5), update(1, 3, 1.0, 0.5)], server)
    assert float(state.model["0.running_var"]) == 0.5
    assert state.model["0.num_batches_tracked"].dtype == torch.int64
    # Only parameters are remembered.
    assert set(state.memory) == {"0.weight", "0.bias", "1.weight"}


def test_the_memory_of_one_round_serves_the_next() -> None:
    # β = 1/2: the mean is 1 twice. w = 0 + 1 = 1; then Δ = 0, v = 1/2, w = 3/2.
    method = FedAvg[ModelState](server_optimizer=ServerSGD(momentum=0.5))
    server, state = tiny.server(normed(), 1), ModelState(tensors(0.0, 1.0))
    for expected in (1.0, 1.5):
        state = tiny.after(method, state, [update(0, 1, 1.0, 1.0)], server)
        assert float(state.model["0.weight"]) == expected


def test_a_step_changes_nothing_of_the_old_state() -> None:
    for optimizer in ALL:
        method = FedAvg[ModelState](server_optimizer=optimizer)
        server = tiny.server(normed(), 1)
        old = tiny.after(method, ModelState(tensors(0.0, 1.0)), [update(0, 1, 1.0, 1.0)], server)
        kept = {name: tensor.clone() for name, tensor in flatten(old)[1].items()}
        tiny.after(method, old, [update(0, 1, 2.0, 1.0)], server)
        assert all(torch.equal(kept[n], t) for n, t in flatten(old)[1].items())


def test_the_memory_is_part_of_the_state_that_is_saved() -> None:
    method = FedAvg[ModelState](server_optimizer=ServerAdam())
    server = tiny.server(normed(), 1)
    state = tiny.after(method, ModelState(tensors(0.0, 1.0)), [update(0, 1, 1.0, 1.0)], server)
    again = restore(ModelState, *flatten(state))
    assert set(again.memory["0.weight"]) == {"m", "v", "t"}
    assert torch.equal(again.memory["0.weight"]["v"], state.memory["0.weight"]["v"])


class Stop(Exception):
    """An interruption."""


class StopInRound2(Callback):
    """Interrupts a run that has saved one round."""

    def on_round(self, record: Record) -> None:
        if record["round"] == 2:
            raise Stop


@pytest.mark.parametrize("optimizer", ALL, ids=lambda o: o.name)
def test_a_resumed_run_gives_the_same_bits(optimizer: ServerOptimizer, tmp_path: Path) -> None:
    method = FedLC(local=tiny.quick(), server_optimizer=optimizer)
    chosen = tiny.experiment(method, tiny.norm_model)
    with pytest.raises(Stop):
        run(chosen, out=tmp_path / "run", callbacks=[StopInRound2()])
    whole = run(chosen)
    assert run(chosen, out=tmp_path / "run", resume=True).digest == whole.digest
    assert run(chosen.but(method=FedLC(local=tiny.quick()))).digest != whole.digest


def test_it_is_found_by_name() -> None:
    method: FedAvg[ModelState] = FedAvg.model_validate({"server_optimizer": "yogi"})
    assert method.server_optimizer == ServerYogi()
    assert type(method.server_optimizer) is ServerYogi


def test_nesterov_needs_momentum() -> None:
    with pytest.raises(FedtailError, match="nesterov needs momentum above 0"):
        ServerSGD(nesterov=True)


@pytest.mark.parametrize(
    "fields", [{"lr": 0}, {"beta1": 1}, {"beta2": 1}, {"tau": 0}, {"beta1": -0.1}]
)
def test_a_value_out_of_range_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(FedtailError, match=next(iter(fields))):
        ServerAdam(**fields)


def test_yogi_rests_where_v_is_the_square() -> None:
    # sign(0) = 0: v stays 4, and 0.
    found = ServerYogi(beta2=0.5).next_v(torch.tensor([4.0, 0.0]), torch.tensor([4.0, 0.0]))
    assert found.tolist() == [4.0, 0.0]
