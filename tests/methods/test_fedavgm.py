"""FedAvgM: momentum on the way to the average."""

from __future__ import annotations

import pytest
import tiny
from server_rounds import rounds

from fedtail import FedAvg, FedAvgM, FedLC, LocalTraining, ServerSGD, run
from fedtail.methods import ModelState


def test_two_rounds_by_hand() -> None:
    # β = 0.9. Average 1: Δ = 1, v = 1, w = 1. Average 2: Δ = 1, v = 0.9 + 1 = 1.9, w = 2.9.
    assert rounds(FedAvgM(), 1.0, 2.0) == pytest.approx([1.0, 2.9])


def test_without_momentum_it_is_fedavg() -> None:
    local = tiny.quick()
    still = FedAvgM(local=local, server_optimizer=ServerSGD())
    plain = run(tiny.experiment(FedAvg(local=local), tiny.norm_model))
    assert run(tiny.experiment(still, tiny.norm_model)).digest == plain.digest
    assert run(tiny.experiment(FedAvgM(local=local), tiny.norm_model)).digest != plain.digest


def test_the_method_is_its_server_optimiser() -> None:
    local = LocalTraining(batch_size=4)
    part = FedAvg[ModelState](local=local, server_optimizer=ServerSGD(momentum=0.9))
    one, other = (run(tiny.experiment(m)) for m in (FedAvgM(local=local), part))
    assert one.digest == other.digest


def test_it_goes_with_another_loss() -> None:
    local = tiny.quick()
    calibrated = FedAvgM(local=local, loss="logit_calibration")
    moved = FedLC(local=local, server_optimizer=ServerSGD(momentum=0.9))
    assert run(tiny.experiment(calibrated)).digest == run(tiny.experiment(moved)).digest
