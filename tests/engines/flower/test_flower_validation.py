"""Validation on Flower: the same counts, the same round kept, whoever holds the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import local_federation
import pytest
import tiny
from test_serving import FEDAVG, served

from fedtail import run
from fedtail.callbacks import Callback


class Killed(BaseException):
    """Nothing in the library catches this."""


class Stop(Callback):
    """Ends the run in round 3."""

    def on_round(self, record: Any) -> None:
        if record["round"] == 3:
            raise Killed


def plain(result: Any) -> list[dict[str, Any]]:
    return [{**record, "seconds": 0} for record in result.history]


@pytest.mark.parametrize("by", ["sample", "client"])
def test_the_scores_are_those_of_the_embedded_engine(by: str, tmp_path: Path) -> None:
    held = {"validation": {"share": 0.4, "by": by}, "keep": "best", "per_round": None}
    experiment = tiny.experiment(FEDAVG, tiny.norm_model, rounds=4, **held)
    config = {"state-dir": str(tmp_path / "states")}
    there = local_federation.federation(experiment, node_config=config).run()
    here = run(experiment)
    assert plain(there) == plain(here)
    assert here.metrics["validation"]["samples"] > 0
    assert there.digest == here.digest


def test_it_is_resumed_with_the_best_model(tmp_path: Path) -> None:
    held: dict[str, Any] = {"validation": 0.4, "keep": "best", "patience": 2}
    experiment = tiny.experiment(FEDAVG, tiny.norm_model, rounds=5, **held)
    config = {"state-dir": str(tmp_path / "states")}
    on = local_federation.federation(experiment, node_config=config)
    with pytest.raises(Killed):
        on.run(tmp_path / "run", callbacks=[Stop()])
    resumed, whole = on.run(tmp_path / "run", resume=True), run(experiment)
    assert plain(resumed) == plain(whole)
    assert resumed.digest == whole.digest


def test_clients_on_machines_of_their_own_hold_out_the_same(tmp_path: Path) -> None:
    # The nodes have all their samples; the share comes with the run's configuration.
    held: dict[str, Any] = {"validation": 0.4, "keep": "best", "score": "accuracy"}
    there = served(FEDAVG, tmp_path / "run", rounds=3, **held)
    here = run(tiny.experiment(FEDAVG, tiny.norm_model, rounds=3, **held))
    keys = ("accuracy", "balanced_accuracy", "per_class", "loss", "samples", "clients", "kept")
    for ours, theirs in zip(here.history, there.history, strict=True):
        assert {k: ours["validation"][k] for k in keys} == {
            k: theirs["validation"][k] for k in keys
        }
    assert there.digest == here.digest
