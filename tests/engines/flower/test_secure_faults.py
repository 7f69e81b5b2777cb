"""Secure sums on real nodes that are killed, late or wrong: the sum of the others, to the bit."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from real import QUICK, SECURE_PLUGIN, kill, running
from summing import summed
from test_secure_nodes import STEPS

from fedtail.described import load_experiment, make_experiment
from fedtail.result import Result
from fedtail.testing.executors import Spoiler, lost

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.xdist_group("flower")]

SECURE = ["run", "--method", "unruly", *QUICK, "--secure", "--rounds", "1", "--out", "run"]
ON_FLOWER = ["--engine", "flower", "--nodes", "3"]


def words(folder: Path) -> list[str]:
    """Write the plug-in whose clients do what they are ordered to."""
    (folder / "orders").mkdir()
    (folder / "unruly.py").write_text(SECURE_PLUGIN)
    return [*SECURE, "--plugin", str(folder / "unruly.py"), *ON_FLOWER]


def here(folder: Path, *clients: int, action: str = "") -> Result:
    """Return what one process makes of the same run, with answers of some clients lost."""
    plain = load_experiment(folder / "run" / "experiment.toml")
    plain |= {"plugins": [], "method": {**plain["method"], "name": "fedavg"}}  # which it is

    def which(job: Any) -> bool:
        return job.task.action == action and job.task.client in clients

    return summed(make_experiment(plain), partial(Spoiler, spoil=lost, which=which))


@pytest.mark.parametrize("action", STEPS)
def test_a_node_is_killed_in_a_step(action: str, tmp_path: Path) -> None:
    # Two of three must stay to the end.
    order = "1-1" if action == "train" else f"{action}-1"
    told = words(tmp_path)
    (tmp_path / "orders" / order).write_text("sleep")
    with running(tmp_path / "run", *told) as run:
        run.until((tmp_path / "orders" / f"seen-{order}").exists, 400)
        kill(run.find("flower-supernode", "partition-id=1"))
        assert run.end(400) == 0, run.output
    (record,) = run.records()
    embedded = here(tmp_path, 1, action=action)
    assert run.digest() == embedded.digest
    assert record["clients"] == embedded.metrics["clients"]
    assert record["clients"] == ([0, 2] if action in STEPS[:3] else [0, 1, 2])
    assert not (tmp_path / "run" / "clients" / "secure").exists()  # nor what the sum broke off with


def test_below_the_threshold_there_is_no_sum(tmp_path: Path) -> None:
    told = words(tmp_path)
    for client in (0, 1):
        (tmp_path / "orders" / f"secure_agree-{client}").write_text("sleep")
    with running(tmp_path / "run", *told) as run:
        for client in (0, 1):
            run.until((tmp_path / "orders" / f"seen-secure_agree-{client}").exists, 400)
        kill(run.find("flower-supernode", "partition-id=0"))
        kill(run.find("flower-supernode", "partition-id=1"))
        assert run.end(400) == 1
    assert "1 members signed who delivered, fewer than the 2 that a sum needs" in run.output
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_a_wrong_share_is_named_and_the_sum_is_right(tmp_path: Path) -> None:
    told = words(tmp_path)
    (tmp_path / "orders" / "secure_open-2").write_text("wrong")
    with running(tmp_path / "run", *told) as run:
        assert run.end(600) == 0, run.output
    assert "client 2 sent a wrong share" in run.output
    assert run.digest() == here(tmp_path).digest


def test_a_late_vector_is_dropped(tmp_path: Path) -> None:
    told = [*words(tmp_path), "--deadline", "60"]
    (tmp_path / "orders" / "1-1").write_text("sleep")
    with running(tmp_path / "run", *told) as run:
        assert run.end(800) == 0, run.output
    (record,) = run.records()
    assert record["clients"] == [0, 2]
    assert "no answer within 60 s" in record["dropped"][0]["reason"]
    assert run.digest() == here(tmp_path, 1, action="train").digest
