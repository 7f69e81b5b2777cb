"""FedAdam: two rounds by hand."""

from __future__ import annotations

import pytest
import tiny
from server_rounds import rounds

from fedtail import FedAdam, FedAvg, ServerAdam, run
from fedtail.methods import ModelState


def test_two_rounds_by_hand() -> None:
    # The paper's β₁ = 0.9, β₂ = 0.99, τ = 0.001, and η = 0.1; v begins with τ².
    # Average 1: m = 0.1, v = 0.99e-6 + 0.01, w = 0.1 · 0.1 / (√v + 0.001).
    # Average w + 1: m = 0.09 + 0.1 = 0.19, v = 0.99 v + 0.01.
    v1 = 0.99e-6 + 0.01
    w1 = 0.01 / (v1**0.5 + 1e-3)
    v2 = 0.99 * v1 + 0.01
    w2 = w1 + 0.019 / (v2**0.5 + 1e-3)
    method = FedAdam(server_optimizer=ServerAdam(lr=0.1))
    assert rounds(method, 1.0, w1 + 1) == pytest.approx([w1, w2])


def test_the_method_is_its_server_optimiser() -> None:
    part = FedAvg[ModelState](local=tiny.quick(), server_optimizer=ServerAdam())
    one, other = (run(tiny.experiment(m)) for m in (FedAdam(local=tiny.quick()), part))
    assert one.digest == other.digest
    assert one.digest != run(tiny.experiment(FedAvg(local=tiny.quick()))).digest
