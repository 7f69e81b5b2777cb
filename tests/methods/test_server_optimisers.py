"""Optimisers on the server: two rounds by hand with each."""

from __future__ import annotations

import pytest
import tiny
from server_rounds import rounds

from fedtail import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedLC,
    FedYogi,
    ServerAdagrad,
    ServerAdam,
    ServerOptimizer,
    ServerSGD,
    ServerYogi,
    run,
)
from fedtail.methods import ModelState


def test_fedavgm_two_rounds_by_hand() -> None:
    # β = 0.9. Average 1: Δ = 1, v = 1, w = 1. Average 2: Δ = 1, v = 0.9 + 1 = 1.9, w = 2.9.
    assert rounds(FedAvgM(), 1.0, 2.0) == pytest.approx([1.0, 2.9])


def test_fedavgm_without_momentum_it_is_fedavg() -> None:
    local = tiny.quick()
    still = FedAvgM(local=local, server_optimizer=ServerSGD())
    plain = run(tiny.experiment(FedAvg(local=local), tiny.norm_model))
    assert run(tiny.experiment(still, tiny.norm_model)).digest == plain.digest
    assert run(tiny.experiment(FedAvgM(local=local), tiny.norm_model)).digest != plain.digest


def test_fedavgm_goes_with_another_loss() -> None:
    local = tiny.quick()
    calibrated = FedAvgM(local=local, loss="logit_calibration")
    moved = FedLC(local=local, server_optimizer=ServerSGD(momentum=0.9))
    assert run(tiny.experiment(calibrated)).digest == run(tiny.experiment(moved)).digest


def test_fedadagrad_two_rounds_by_hand() -> None:
    # τ = 0.001, η = 0.1, no momentum; v begins with τ² = 1e-6.
    # Average 1: v = 1e-6 + 1, w = 0.1 / (√v + 0.001). Average w + 2: v = v + 4.
    w1 = 0.1 / ((1 + 1e-6) ** 0.5 + 1e-3)
    w2 = w1 + 0.2 / ((5 + 1e-6) ** 0.5 + 1e-3)
    method = FedAdagrad(server_optimizer=ServerAdagrad(lr=0.1))
    assert rounds(method, 1.0, w1 + 2) == pytest.approx([w1, w2])


def test_fedadagrad_steps_shrink_when_the_way_stays_the_same() -> None:
    # Δ = 1 three times: 0.1 / √1, √2, √3, about.
    w = rounds(FedAdagrad(server_optimizer=ServerAdagrad(lr=0.1)), 1.0, 1.1, 1.17)
    assert w[0] > w[1] - w[0] > w[2] - w[1] > 0


def test_fedadam_two_rounds_by_hand() -> None:
    # The paper's β₁ = 0.9, β₂ = 0.99, τ = 0.001, and η = 0.1; v begins with τ².
    # Average 1: m = 0.1, v = 0.99e-6 + 0.01, w = 0.1 · 0.1 / (√v + 0.001).
    # Average w + 1: m = 0.09 + 0.1 = 0.19, v = 0.99 v + 0.01.
    v1 = 0.99e-6 + 0.01
    w1 = 0.01 / (v1**0.5 + 1e-3)
    v2 = 0.99 * v1 + 0.01
    w2 = w1 + 0.019 / (v2**0.5 + 1e-3)
    method = FedAdam(server_optimizer=ServerAdam(lr=0.1))
    assert rounds(method, 1.0, w1 + 1) == pytest.approx([w1, w2])


def test_fedyogi_two_rounds_by_hand() -> None:
    # The paper's β₁ = 0.9, β₂ = 0.99, τ = 0.001, and η = 0.1; v begins with τ² = 1e-6.
    # Average 1: Δ² = 1 > v: m = 0.1, v = 1e-6 + 0.01, w = 0.1 · 0.1 / (√v + 0.001).
    # Average w + 0.05: Δ² = 0.0025 < v: m = 0.095, v = v - 0.01 · 0.0025 (Adam: 0.99 v + ...).
    v1 = 1e-6 + 0.01
    w1 = 0.01 / (v1**0.5 + 1e-3)
    v2 = v1 - 0.01 * 0.0025
    w2 = w1 + 0.1 * (0.09 + 0.005) / (v2**0.5 + 1e-3)
    method = FedYogi(server_optimizer=ServerYogi(lr=0.1))
    assert rounds(method, 1.0, w1 + 0.05) == pytest.approx([w1, w2])


@pytest.mark.parametrize(
    ("method", "optimiser"),
    [
        (FedAvgM, ServerSGD(momentum=0.9)),
        (FedAdagrad, ServerAdagrad()),
        (FedAdam, ServerAdam()),
        (FedYogi, ServerYogi()),
    ],
)
def test_the_method_is_its_server_optimiser(
    method: type[FedAvg[ModelState]], optimiser: ServerOptimizer
) -> None:
    part = FedAvg[ModelState](local=tiny.quick(), server_optimizer=optimiser)
    one, other = (run(tiny.experiment(m)) for m in (method(local=tiny.quick()), part))
    assert one.digest == other.digest
    assert one.digest != run(tiny.experiment(FedAvg(local=tiny.quick()))).digest
