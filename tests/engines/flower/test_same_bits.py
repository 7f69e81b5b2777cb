"""One seed, one model: in one process, in a pool, on Ray and on SuperNodes of their own.

Real processes on the loopback interface. The federations are opened once for all methods.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fedtail import (
    GBME,
    BalanceFL,
    CReFF,
    Experiment,
    Exponential,
    FedAvg,
    LocalTraining,
    Method,
    RedGrape,
    Result,
    Scaffold,
    run,
)
from fedtail.engines.embedded import Embedded
from fedtail.engines.flower.follow import RunFollower
from fedtail.engines.flower.launcher import Launch, collect, write_app
from fedtail.engines.flower.status import StatusFiles
from fedtail.engines.flower.superlink import FlowerProcesses
from fedtail.folder import RunFolder
from fedtail.loop import Loop
from fedtail.models.mlp import MLP
from fedtail.setting import prepare

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.xdist_group("flower")]

LOCAL = LocalTraining(epochs=1, batch_size=32, lr=0.05)
METHODS: dict[str, Method[Any]] = {
    "fedavg": FedAvg(local=LOCAL),
    "scaffold": Scaffold(local=LOCAL),
    "creff": CReFF(local=LOCAL, match_steps=5, features=10, head_epochs=5),
    "redgrape": RedGrape(local=LOCAL),
    "balancefl": BalanceFL(local=LOCAL),
    "gbme": GBME(local=LOCAL),
}


def experiment(name: str, workers: int = 0) -> Experiment:
    """Four clients on three nodes, three of them in a round: a node serves one, two or none."""
    return Experiment(
        method=METHODS[name],
        model=MLP(hidden=(16,)),
        tail=Exponential(imbalance=10),
        clients=4,
        per_round=3,
        rounds=2,
        workers=workers,
        together=0,  # as nodes train, each client alone
        device="cpu",
    )


@cache
def embedded(name: str) -> Result:
    return run(experiment(name))


@pytest.fixture(scope="module")
def superlink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlowerProcesses]:
    """A SuperLink with three SuperNodes."""
    yield from opened(tmp_path_factory.mktemp("superlink"), simulation=False)


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlowerProcesses]:
    """A SuperLink whose clients are simulated."""
    pytest.importorskip("ray")
    yield from opened(tmp_path_factory.mktemp("ray"), simulation=True)


def opened(logs: Path, simulation: bool) -> Iterator[FlowerProcesses]:
    with tempfile.TemporaryDirectory(prefix="fedtail-") as home:
        federation = FlowerProcesses(Path(home), logs, simulation=simulation)
        try:
            federation.open()
            for partition in range(0 if simulation else 3):
                federation.add_node(partition, 3)
            yield federation
        finally:
            federation.close()


def on(federation: FlowerProcesses, name: str, out: Path) -> Result:
    """Submit one more run to a federation that is already there."""
    setting = prepare(experiment(name))
    folder = RunFolder(out)
    Loop(setting, Embedded(setting.runtime()), folder, []).begin()
    status = StatusFiles(folder.path)
    status.clear()
    config = {"out": str(out), "nodes": 3, "deadline": 600.0, "join": 300.0, "resume": False}
    app = write_app(federation.home / f"app-{name}", config)
    options = ["--federation-config", "num-supernodes=3 client-resources-num-cpus=1"]
    federation.submit(app, *(options if federation.simulation else []))
    Launch().wait(federation, status, RunFollower(folder, []))
    return collect(setting, folder, [])


def assert_same(found: Result, name: str) -> None:
    expected = embedded(name)
    assert found.digest == expected.digest
    for ours, theirs in zip(expected.history, found.history, strict=True):
        assert theirs["dropped"] == []
        assert {**ours, "seconds": 0} == {**theirs, "seconds": 0}


@pytest.mark.parametrize("name", METHODS)
def test_a_pool_gives_the_same_model(name: str) -> None:
    assert_same(run(experiment(name, workers=2)), name)


@pytest.mark.parametrize("name", METHODS)
def test_ray_gives_the_same_model(name: str, ray: FlowerProcesses, tmp_path: Path) -> None:
    assert_same(on(ray, name, tmp_path / "run"), name)


@pytest.mark.parametrize("name", METHODS)
def test_supernodes_give_the_same_model(
    name: str, superlink: FlowerProcesses, tmp_path: Path
) -> None:
    assert_same(on(superlink, name, tmp_path / "run"), name)
