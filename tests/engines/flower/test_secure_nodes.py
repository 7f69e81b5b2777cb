"""Secure sums on nodes: the bits of the embedded engine, losses in every step, and refusals."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import local_federation
import pytest
import tiny
from command_line import fedtail, one_sentence
from flwr.app import Message
from local_federation import app_for
from local_grid import LocalGrid
from summing import summed
from test_serving import FEDAVG, served

from fedtail import (
    CReFF,
    Experiment,
    FedAvg,
    FedtailError,
    Method,
    Privacy,
    RedGrape,
    RunStopped,
    Scaffold,
    run,
)
from fedtail.engines.flower.bridge import from_records
from fedtail.engines.flower.demands import Demands, node_identity
from fedtail.engines.flower.scrubbing import PublicError
from fedtail.privacy.secure.keys import new_identity
from fedtail.setting import prepare
from fedtail.testing.executors import Spoiler, lost

STEPS = ["secure_keys", "secure_shares", "train", "secure_agree", "secure_open"]
METHODS: dict[str, Method[Any]] = {
    "fedavg": FedAvg(local=tiny.quick()),
    "creff": CReFF(local=tiny.quick(), features=5, match_steps=5, head_epochs=5),
    "redgrape": RedGrape(local=tiny.quick(), per_class=2),
    "scaffold": Scaffold(local=tiny.quick()),
}


def experiment(method: Method[Any] | None = None, **fields: Any) -> Experiment:
    fields = {"rounds": 2, "secure": True, "workers": 0, "together": 0, **fields}
    return tiny.experiment(method, tiny.norm_model, **fields)


@pytest.mark.parametrize("name", METHODS)
def test_bits_and_traffic_are_those_of_the_embedded_engine(name: str, tmp_path: Path) -> None:
    # Six clients on three nodes: a node answers for two of them.
    chosen = experiment(METHODS[name])
    config = {"state-dir": str(tmp_path)}
    there, here = local_federation.federation(chosen, node_config=config).run(), run(chosen)
    assert there.digest == here.digest
    for ours, theirs in zip(here.history, there.history, strict=True):
        assert {**ours, "seconds": 0} == {**theirs, "seconds": 0}
    (desk,) = tmp_path.rglob("secure")
    assert list(desk.iterdir()) == []  # who was asked last is not told


def test_nodes_shorten_their_own_changes(tmp_path: Path) -> None:
    chosen = experiment(METHODS["creff"], robust={"name": "norm_bound", "bound": 0.05})
    config = {"state-dir": str(tmp_path)}
    there = local_federation.federation(chosen, node_config=config).run()
    assert there.digest == run(chosen).digest != run(chosen.but(robust="none")).digest


def test_secure_and_private_together(tmp_path: Path) -> None:
    chosen = experiment(METHODS["creff"], privacy=Privacy(epsilon=20.0, simulated=True))
    config = {"state-dir": str(tmp_path)}
    there = local_federation.federation(chosen, node_config=config).run()
    assert there.digest == run(chosen).digest == run(chosen.but(secure=False)).digest


class Mute(LocalGrid):
    """A grid with nodes that do not answer one action."""

    mute: tuple[int, str] = (0, "")

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        found: list[str] = []
        for message in messages:
            jobs = from_records(message.content)[1].get("jobs", [])
            acts = {(message.metadata.dst_node_id - 100, job["action"]) for job in jobs}
            self.silent = {message.metadata.dst_node_id} if self.mute in acts else set()
            found += super().push_messages([message])
        return found


@pytest.mark.parametrize("action", STEPS)
def test_a_node_that_does_not_answer_in_a_step(action: str, tmp_path: Path) -> None:
    chosen = experiment(per_round=6, rounds=1)
    grid = Mute(app_for(prepare(chosen).runtime()), 6, **{"state-dir": str(tmp_path)})
    grid.mute = (1, action)
    found = local_federation.Federation(chosen, grid, 6, deadline=1.0).run()

    def which(job: Any) -> bool:
        return bool(job.task.action == action and job.task.client == 1)

    here = summed(chosen, lambda runtime: Spoiler(runtime, spoil=lost, which=which))
    assert found.digest == here.digest
    assert found.metrics["clients"] == here.metrics["clients"]


def test_below_the_threshold_nothing_is_learned(tmp_path: Path) -> None:
    # t = 2 of 2: one does not deliver.
    chosen = experiment(per_round=2, rounds=1)
    grid = Mute(app_for(prepare(chosen).runtime()), 6, **{"state-dir": str(tmp_path)})
    grid.mute = (next(iter(run(chosen).metrics["clients"])), "train")
    with pytest.raises(RunStopped, match="no valid update in 1 round"):
        local_federation.Federation(chosen, grid, 6, deadline=1.0).run()


def test_a_node_without_a_folder_does_not_take_part() -> None:
    with pytest.raises(RunStopped, match=r"every client failed|only with a state-dir"):
        local_federation.federation(experiment(rounds=1)).run()


def test_a_node_may_demand_secure_sums(tmp_path: Path) -> None:
    config = {"state-dir": str(tmp_path), "require-secure": True}
    assert local_federation.federation(experiment(), node_config=config).run().metrics["clients"]
    with pytest.raises(RunStopped, match="answers secure sums only"):
        open_run = experiment(secure=False)
        local_federation.federation(open_run, node_config=config).run()
    with pytest.raises(PublicError, match="require-secure"):
        Demands.of({"require-secure": "yes"})


def test_nodes_know_each_other_by_pinned_keys(tmp_path: Path) -> None:
    # Each node has a key of its own; all have the same list of public ones.
    names = [new_identity(tmp_path / f"{k}.key") for k in range(6)]
    pins = tmp_path / "pins.toml"
    pins.write_text("".join(f'{k} = "{name}"\n' for k, name in enumerate(names)))
    chosen = experiment(per_round=6, rounds=1)

    def ran(last: str) -> Any:
        grid = LocalGrid(
            app_for(prepare(chosen).runtime()), 6, **{"state-dir": str(tmp_path / "s")}
        )
        for k, context in enumerate(grid.contexts.values()):
            key = tmp_path / (f"{k}.key" if k < 5 else last)
            context.node_config |= {"secure-key": str(key), "secure-pins": str(pins)}
        return local_federation.Federation(chosen, grid, 6).run()

    assert ran("5.key").metrics["clients"] == [0, 1, 2, 3, 4, 5]
    new_identity(tmp_path / "other.key")
    with pytest.raises(RunStopped, match="no valid update"):
        ran("other.key")  # the others stop: somebody else plays client 5


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"secure-key": "a"}, "not both"),
        ({"secure-key": "nowhere", "secure-pins": "nowhere"}, "cannot read"),
    ],
)
def test_half_an_identity_is_refused(config: dict[str, str], reason: str) -> None:
    with pytest.raises(PublicError, match=reason):
        node_identity(config)
    assert node_identity({}) is None


def test_a_deployed_app_sums_securely(tmp_path: Path) -> None:
    config: dict[str, Any] = {"secure": True, "secure-threshold": 0.75}
    found = served(FEDAVG, tmp_path / "run", **config)
    plain = served(FEDAVG, tmp_path / "plain")
    assert found.metrics["clients"] == plain.metrics["clients"]
    assert found.metrics["bytes_up"] > plain.metrics["bytes_up"]
    for name, tensor in plain.tensors.items():
        if tensor.is_floating_point():
            assert (found.tensors[name] - tensor).abs().max() < 1e-6


def test_a_deployed_app_has_robust_means(tmp_path: Path) -> None:
    bound: dict[str, Any] = {"robust.name": "norm_bound", "robust.bound": 0.05}
    chosen = tiny.experiment(
        FEDAVG, tiny.norm_model, rounds=2, robust={"name": "norm_bound", "bound": 0.05}
    )
    plain = served(FEDAVG, tmp_path / "plain", **bound)
    assert plain.digest == run(chosen).digest
    secure = served(FEDAVG, tmp_path / "run", secure=True, **bound)
    assert secure.digest == run(chosen.but(secure=True)).digest
    krum: dict[str, Any] = {"robust.name": "krum"}
    with pytest.raises(FedtailError, match="'krum' cannot be summed securely"):
        served(FEDAVG, tmp_path / "krum", secure=True, **krum)


def test_a_nodes_key_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = fedtail("flower", "key", "node.key")
    assert made.code == 0 and made.out.startswith('PARTITION-ID = "')
    assert len(bytes.fromhex((tmp_path / "node.key").read_text())) == 32
    assert "is there already" in one_sentence(fedtail("flower", "key", "node.key"))
