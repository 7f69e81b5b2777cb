"""Centralised training is FedAvg with one client that holds everything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import nn
from typer.testing import CliRunner

from fedtail import (
    IID,
    Arrays,
    BalancedSoftmax,
    Centralised,
    CentralisedBSM,
    Dirichlet,
    Experiment,
    Exponential,
    FedAvg,
    Method,
    run,
)
from fedtail.callbacks import read_records
from fedtail.cli import app
from fedtail.setting import prepare


@pytest.mark.parametrize(
    "model", [tiny.plain_model, tiny.norm_model, tiny.dropout_model], ids=lambda m: m.__name__
)
def test_it_is_fedavg_with_one_client_to_the_bit(model: Any) -> None:
    # Prepare: the same samples, shared out to six clients or held by one.
    local = tiny.quick(momentum=0.9, epochs=2)
    chosen = tiny.experiment(Centralised(local=local), model)
    one = chosen.but(
        method=FedAvg(local=local), partition=IID(), clients=1, per_round=None, data=tiny.source()
    )

    # Execute
    ours, theirs = run(chosen), run(one)

    # Assert
    assert ours.digest == theirs.digest
    for mine, other in zip(ours.history, theirs.history, strict=True):
        assert {**mine, "seconds": 0} == {**other, "seconds": 0}


def test_one_epoch_by_hand() -> None:
    # Two clients, one sample each, x = 1, classes 0 and 1; one batch from w = 0 with rate 1. The
    # softmax is (1/2, 1/2) and the mean gradient (p - e_0)/2 + (p - e_1)/2 = 0: nothing moves,
    # where FedAvg with a batch each would move both clients. With a third sample, of class 0,
    # the mean gradient is p - (2/3, 1/3) = (-1/6, 1/6), so w = (1/6, -1/6).
    def model() -> nn.Module:
        made = nn.Linear(1, 2, bias=False)
        nn.init.zeros_(made.weight)
        return made

    x, y = np.ones((3, 1), np.float32), np.array([0, 1, 0])
    data = Arrays(x, y, x, y, client_train=np.array([0, 1, 1]), normalisation="none")
    chosen = Experiment(
        method=Centralised(local={"lr": 1.0, "batch_size": 3}),
        data=data,
        model=model,
        partition="natural",
        rounds=1,
        device="cpu",
    )
    weight = run(chosen).tensors["weight"].flatten()
    torch.testing.assert_close(weight, torch.tensor([1 / 6, -1 / 6]))


def test_the_training_samples_are_those_of_all_clients() -> None:
    # A tail is cut and a part of the samples is the server's: neither comes back.
    fields: dict[str, Any] = {
        "tail": Exponential(imbalance=20),
        "partition": Dirichlet(alpha=0.3),
        "clients": 7,
        "server_per_class": 3,
        "device": "cpu",
    }
    apart = prepare(Experiment(method=FedAvg(), **fields))
    pooled = prepare(Experiment(method=Centralised(), **fields))
    assert len(pooled.federation) == 1
    assert pooled.federation.order.tolist() == sorted(apart.federation.order.tolist())
    assert pooled.split.digest == apart.split.digest
    assert pooled.class_counts == apart.class_counts
    assert torch.equal(pooled.federation.counts(0), apart.federation.class_counts())


def test_balanced_softmax_knows_the_global_counts() -> None:
    # The one client's own prior is the global one.
    local = tiny.quick()
    thin = run(tiny.experiment(CentralisedBSM(local=local)))
    long = run(tiny.experiment(Centralised(local=local, loss=BalancedSoftmax(), prior="global")))
    assert thin.digest == long.digest
    assert thin.digest != run(tiny.experiment(Centralised(local=local))).digest


def test_a_cohort_or_a_minimum_for_many_clients_is_no_obstacle() -> None:
    # A comparison has one protocol; here there is one client to sample, or to wait for.
    result = run(tiny.experiment(Centralised(local=tiny.quick()), per_round=4, min_clients=3))
    assert [record["clients"] for record in result.history] == [[0]] * 3


def test_it_says_that_data_leave_the_clients() -> None:
    for name in ("centralised", "centralised-bsm"):
        assert "leave the clients" in Method.registry[name].needs[0]
        assert Method.registry[name].pooled
    assert not FedAvg.pooled


def test_it_stands_beside_the_others_in_a_comparison(tmp_path: Path) -> None:
    out = tmp_path / "both"
    words = ["compare", "--method", "fedavg", "--method", "centralised", "--rounds", "1"]
    result = CliRunner().invoke(app, [*words, "--per-round", "4", "--out", str(out)])
    assert result.exit_code == 0, result.output
    splits = {
        (out / f"{name}-seed0" / "split.json").read_text() for name in ("fedavg", "centralised")
    }
    assert len(splits) == 1
    (record,) = read_records(out / "centralised-seed0" / "metrics.jsonl")
    assert record["clients"] == [0]
