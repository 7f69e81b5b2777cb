"""FedLC's loss in FedProx and SCAFFOLD (Table 7 of its paper) learns, on the digits."""

from __future__ import annotations

from typing import Any

import pytest

from fedtail import (
    BalancedDirichlet,
    Experiment,
    FedProx,
    LocalTraining,
    LogitCalibration,
    Method,
    Scaffold,
    run,
)

LOCAL = LocalTraining(lr=0.2, epochs=2, batch_size=32)
LOSS = LogitCalibration(tau=0.5)


@pytest.mark.parametrize(
    "method",
    [FedProx(local=LOCAL, loss=LOSS, mu=0.05), Scaffold(local=LOCAL, loss=LOSS)],
    ids=lambda method: method.name,
)
def test_it_learns(method: Method[Any]) -> None:
    # Ten classes: a guess is right once in ten.
    split = BalancedDirichlet(alpha=1.0)
    result = run(Experiment(method=method, partition=split, clients=4, rounds=4, eval_every=4))
    assert result.metrics["accuracy"] > 0.6
    assert not any(record["dropped"] for record in result.history)
