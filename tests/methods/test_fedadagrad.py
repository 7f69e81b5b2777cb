"""FedAdagrad: two rounds by hand."""

from __future__ import annotations

import pytest
import tiny
from server_rounds import rounds

from fedtail import FedAdagrad, FedAvg, ServerAdagrad, run
from fedtail.methods import ModelState


def test_two_rounds_by_hand() -> None:
    # τ = 0.001, η = 0.1, no momentum; v begins with τ² = 1e-6.
    # Average 1: v = 1e-6 + 1, w = 0.1 / (√v + 0.001). Average w + 2: v = v + 4.
    w1 = 0.1 / ((1 + 1e-6) ** 0.5 + 1e-3)
    w2 = w1 + 0.2 / ((5 + 1e-6) ** 0.5 + 1e-3)
    method = FedAdagrad(server_optimizer=ServerAdagrad(lr=0.1))
    assert rounds(method, 1.0, w1 + 2) == pytest.approx([w1, w2])


def test_steps_shrink_when_the_way_stays_the_same() -> None:
    # Δ = 1 three times: 0.1 / √1, √2, √3, about.
    w = rounds(FedAdagrad(server_optimizer=ServerAdagrad(lr=0.1)), 1.0, 1.1, 1.17)
    assert w[0] > w[1] - w[0] > w[2] - w[1] > 0


def test_the_method_is_its_server_optimiser() -> None:
    part = FedAvg[ModelState](local=tiny.quick(), server_optimizer=ServerAdagrad())
    one, other = (run(tiny.experiment(m)) for m in (FedAdagrad(local=tiny.quick()), part))
    assert one.digest == other.digest
    assert one.digest != run(tiny.experiment(FedAvg(local=tiny.quick()))).digest
