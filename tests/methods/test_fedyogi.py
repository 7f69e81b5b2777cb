"""FedYogi: two rounds by hand."""

from __future__ import annotations

import pytest
import tiny
from server_rounds import rounds

from fedtail import FedAvg, FedYogi, ServerYogi, run
from fedtail.methods import ModelState


def test_two_rounds_by_hand() -> None:
    # The paper's β₁ = 0.9, β₂ = 0.99, τ = 0.001, and η = 0.1; v begins with τ² = 1e-6.
    # Average 1: Δ² = 1 > v: m = 0.1, v = 1e-6 + 0.01, w = 0.1 · 0.1 / (√v + 0.001).
    # Average w + 0.05: Δ² = 0.0025 < v: m = 0.095, v = v - 0.01 · 0.0025 (Adam: 0.99 v + ...).
    v1 = 1e-6 + 0.01
    w1 = 0.01 / (v1**0.5 + 1e-3)
    v2 = v1 - 0.01 * 0.0025
    w2 = w1 + 0.1 * (0.09 + 0.005) / (v2**0.5 + 1e-3)
    method = FedYogi(server_optimizer=ServerYogi(lr=0.1))
    assert rounds(method, 1.0, w1 + 0.05) == pytest.approx([w1, w2])


def test_the_method_is_its_server_optimiser() -> None:
    part = FedAvg[ModelState](local=tiny.quick(), server_optimizer=ServerYogi())
    one, other = (run(tiny.experiment(m)) for m in (FedYogi(local=tiny.quick()), part))
    assert one.digest == other.digest
    assert one.digest != run(tiny.experiment(FedAvg(local=tiny.quick()))).digest
