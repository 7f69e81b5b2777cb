"""A server that never sees the clients' data: same model, same folder, resumed from it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
import tiny
import torch
from flwr.app import Context, RecordDict
from local_grid import LocalGrid
from torch import Tensor

from fedtail import CReFF, FedAvg, FedtailError, Method, run
from fedtail.callbacks import Callback
from fedtail.engines.flower import client_app, serve
from fedtail.methods import LocalRun, ModelState
from fedtail.protocol import Payload
from fedtail.setting import Setting, prepare

FEDAVG: FedAvg[ModelState] = FedAvg(local=tiny.quick(), buffers="local")


@cache
def setting() -> Setting:
    return prepare(tiny.experiment(None, tiny.norm_model))


def local_data(context: Context) -> tuple[Tensor, Tensor]:
    data = setting().federation.client(int(context.node_config["partition-id"]))
    return data.batch(torch.arange(len(data)))


def agreed_test() -> tuple[Tensor, Tensor]:
    return setting().federation.test_batch(0, 12)


def served(
    method: Method[Any], out: Path, callbacks: tuple[Callback, ...] = (), **config: Any
) -> Any:
    grid = LocalGrid(
        client_app(tiny.norm_model, local_data, device="cpu"), 6, **{"state-dir": str(out) + "-s"}
    )
    config = {"out": str(out), "clients": 6, "per-round": 4, "rounds": 2, **config}
    return serve(
        grid,
        Context(1, 0, {}, RecordDict(), config),
        method=method,
        model=tiny.norm_model,
        test=agreed_test(),
        classes=["a", "b", "c", "d"],
        class_counts=(21, 13, 8, 0),
        callbacks=callbacks,
    )


@pytest.mark.parametrize("method", [FEDAVG, CReFF(local=tiny.quick(), match_steps=2)])
def test_the_model_and_the_scores_are_those_of_an_embedded_run(
    method: Method[Any], tmp_path: Path
) -> None:
    result = served(method, tmp_path / "run")
    expected = run(tiny.experiment(method, tiny.norm_model, rounds=2))
    assert result.digest == expected.digest
    for ours, theirs in zip(expected.history, result.history, strict=True):
        assert {**ours, "seconds": 0} == {**theirs, "seconds": 0}
    written = {path.name for path in (tmp_path / "run").iterdir()}
    assert written >= {"experiment.toml", "metrics.jsonl", "model.safetensors", "checkpoint"}


class Boastful(FedAvg[ModelState]):
    """Client 1 says that it has more samples than it announced."""

    def reply(self, run: LocalRun) -> Payload:
        sent = super().reply(run)
        more = int(run.client.id == 1)
        return replace(sent, scalars={**sent.scalars, "samples": len(run.client.data) + more})


def test_samples_are_held_against_what_the_node_announced(tmp_path: Path) -> None:
    # Client 1 has five samples. The server sees no data: it knows this from the node's first word.
    Method.registry.add("boastful", cast(Any, Boastful))
    Boastful.name = "boastful"
    result = served(Boastful(local=tiny.quick()), tmp_path / "run", (), **{"per-round": 6})
    for record in result.history:
        assert record["dropped"] == [{"client": 1, "reason": "sent samples = 6, not from 0 to 5"}]
        assert record["clients"] == [0, 2, 3, 4, 5]


class Killed(BaseException):
    """Nothing in the library catches this."""


class Stop(Callback):
    """Ends the run in round 2."""

    def on_round(self, record: Any) -> None:
        if record["round"] == 2:
            raise Killed


def test_it_is_resumed_to_the_same_model(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(Killed):
        served(FEDAVG, out, (Stop(),), rounds=3)
    with pytest.raises(FedtailError, match="already holds a run"):
        served(FEDAVG, out, rounds=3)
    expected = run(tiny.experiment(FEDAVG, tiny.norm_model, rounds=3))
    assert served(FEDAVG, out, rounds=3, resume=True).digest == expected.digest


def test_the_number_of_nodes_must_be_said(tmp_path: Path) -> None:
    with pytest.raises(FedtailError, match="must say 'clients'"):
        served(FEDAVG, tmp_path / "run", clients=None)
