"""Whole runs with a proxy prior, with noise and without."""

from __future__ import annotations

import math
from typing import Any

import pytest
import tiny

from fedtail import Experiment, FedAvg, run
from fedtail.losses import BalancedSoftmax
from fedtail.training import ClassPrior, PrivateProxyPrior, ProxyPrior


def experiment(prior: ClassPrior, **fields: Any) -> Experiment:
    method: FedAvg[Any] = FedAvg(loss=BalancedSoftmax(), prior=prior, local=tiny.quick())
    return tiny.experiment(method, tiny.norm_model, **fields)


def test_any_prior_based_loss_can_use_it() -> None:
    result = run(experiment(ProxyPrior()))
    told = result.state.prior
    assert told.shape == (tiny.CLASSES,)
    assert float(told.sum()) == pytest.approx(sum(map(sum, tiny.COUNTS)), rel=1e-5)
    # Nobody has class 3: its share is the floor, 0.05 / 4, up to the rescaling by the sum.
    assert float(told[3] / told.sum()) == pytest.approx(0.0125, rel=0.05)
    assert result.history[0]["method"] == {}


def test_without_noise_the_run_is_the_same_bits() -> None:
    silent = PrivateProxyPrior(epsilon=math.inf)
    assert run(experiment(silent)).digest == run(experiment(ProxyPrior())).digest


def test_the_budget_is_in_the_first_record() -> None:
    history = run(experiment(PrivateProxyPrior(epsilon=4.0, delta=0.01))).history
    assert history[0]["method"]["epsilon"] == 4.0
    assert history[0]["method"]["delta"] == 0.01
    assert history[0]["method"]["sigma"] == PrivateProxyPrior(epsilon=4.0, delta=0.01).sigma
    # Released once: nothing is spent later.
    assert [record["method"] for record in history[1:]] == [{}, {}]
