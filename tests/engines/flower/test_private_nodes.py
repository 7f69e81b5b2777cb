"""Differential privacy on nodes: the same bits, budget and secrets, and nodes that demand it."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import local_federation
import pytest
import tiny
import tiny_clip
import torch
from test_serving import FEDAVG, served

from fedtail import Experiment, FedAvg, FedtailError, Method, Privacy, Result, RunStopped, run
from fedtail.callbacks import Callback
from fedtail.engines.flower.bridge import from_records
from fedtail.engines.flower.demands import TERMS, Demands
from fedtail.engines.flower.follow import RunFollower
from fedtail.engines.flower.scrubbing import PublicError
from fedtail.folder import RunFolder
from fedtail.methods import LocalRun, ModelState
from fedtail.privacy.clipping import CLIP
from fedtail.protocol import Payload
from fedtail.testing import Case

SMALL: dict[str, dict[str, Any]] = {
    "creff": {"features": 5, "match_steps": 5, "head_epochs": 5},
    "redgrape": {"per_class": 2},
    "fedbe": {"models": 2, "distil_epochs": 3, "distil_batch": 2, "swa_every": 2},
    "feddf": {"distil_steps": 4, "distil_batch": 4},
    "fedic": {"tune_steps": 2, "calibrate_steps": 2, "distil_steps": 3, "distil_batch": 4},
}
"""Fields that make a method quick."""


def case(name: str) -> Case:
    fields = tiny_clip.fields() if name == "clip2fl" else SMALL.get(name, {})
    return Case(Method.registry[name], fields)


def private(rounds: int = 2, per_round: int = 4, **privacy: Any) -> Experiment:
    privacy = {"epsilon": 20.0, "simulated": True, **privacy}
    return tiny.experiment(
        None, tiny.norm_model, rounds=rounds, per_round=per_round, privacy=Privacy(**privacy)
    )


def assert_same(there: Result, here: Result) -> None:
    assert there.digest == here.digest
    for ours, theirs in zip(here.history, there.history, strict=True):
        assert {**ours, "seconds": 0} == {**theirs, "seconds": 0}


@pytest.mark.parametrize(
    "privacy",
    [
        {},
        {"model": "local"},
        {"quantile": 0.5},
        {"sampling": "poisson", "neighbours": "remove"},
        {"sampling": "poisson", "quantile": 0.3},
    ],
    ids=["central", "local", "quantile", "poisson", "poisson and quantile"],
)
def test_simulated_noise_gives_the_bits_and_the_budget_of_the_embedded_engine(
    privacy: dict[str, Any],
) -> None:
    experiment = private(**privacy)
    here = run(experiment)
    assert_same(local_federation.federation(experiment).run(), here)
    assert here.history[-1]["privacy"]["epsilon"] <= 20.0


@pytest.mark.parametrize("name", sorted(Method.registry))
def test_every_method_that_can_be_private_can_be_so_on_nodes(name: str, tmp_path: Path) -> None:
    def of(where: str) -> Result | str:
        try:
            privacy = Privacy(epsilon=50.0, simulated=True)
            chosen = case(name).experiment(rounds=2, per_round=4, privacy=privacy)
            if where == "here":
                return run(chosen)
            config = {"state-dir": str(tmp_path)}
            return local_federation.federation(chosen, node_config=config).run()
        except (FedtailError, RunStopped) as error:
            return str(error)

    here, there = of("here"), of("there")
    if isinstance(here, Result) and isinstance(there, Result):
        assert_same(there, here)
        assert "privacy" in there.metrics
    else:
        assert here == there  # the same refusal


def messages(federation: local_federation.Federation) -> list[tuple[Any, dict[str, Any]]]:
    """Return payloads and notes of every message that asked for work."""
    read = [from_records(message.content) for message in federation.grid.sent]
    return [(payloads, notes) for payloads, notes in read if notes["kind"] == "work"]


def sent_up(federation: local_federation.Federation) -> list[Any]:
    """Let replies pass, and keep them."""
    kept: list[Any] = []

    def spoil(node: int, reply: Any) -> Any:
        kept.append(from_records(reply.content))
        return reply

    federation.grid.spoil = spoil
    return kept


def test_an_update_is_clipped_before_it_leaves_its_node() -> None:
    # S = 0.25, one group of tensors: each reply is a change of norm 0.25 at most, of weight 1.
    federation = local_federation.federation(private(1, 6, clip=0.25), nodes=6)
    replies = sent_up(federation)
    federation.run()
    updates = [payloads[0] for payloads, notes in replies if notes["kind"] == "done"]
    assert len(updates) == 6
    for update in updates:
        norm = torch.cat([t.flatten() for t in update.tensors.values()]).double().norm()
        assert norm <= 0.25
        assert update.scalars["samples"] == 1
        assert all(s in (0, 1) for s in update.scalars.values())


def test_local_noise_is_added_on_the_node_and_is_a_secret() -> None:
    def first(**privacy: Any) -> torch.Tensor:
        chosen = private(1, 6, model="local", clip=1e-3, noise=100.0, **privacy)
        federation = local_federation.federation(chosen, nodes=6)
        replies = sent_up(federation)
        federation.run()
        update = next(p[0] for p, notes in replies if notes["kind"] == "done")
        return torch.cat([t.flatten() for t in update.tensors.values()])

    # σ = 0.1 beside changes of 0.001: what leaves is noise, and with os.urandom other noise.
    seeded, again = first(), first()
    secret, other = first(simulated=False), first(simulated=False)
    assert torch.equal(seeded, again)
    assert not torch.equal(secret, other) and not torch.equal(secret, seeded)
    n = len(secret)
    for found in (seeded, secret, other):
        assert abs(float(found.std()) - 0.1) < 4 * 0.1 / (2 * n) ** 0.5


def test_who_was_drawn_stands_in_no_file_and_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    experiment = private(2, 3, simulated=False)
    federation = local_federation.federation(experiment, 6, journal=tmp_path / "journal.jsonl")
    federation.grid.silent = set(range(100, 103))
    federation.deadline = 0.1
    out = tmp_path / "run"
    result = federation.run(out)
    lines = [json.loads(x) for x in (tmp_path / "journal.jsonl").read_text().splitlines()]
    for line, record in zip(lines, result.history, strict=True):
        assert record["clients"] is None and "traffic" not in record
        assert line["replied"] == record["answered"]
        assert len(line["failed"]) == 3 - line["replied"]
        assert all(failed.keys() == {"reason"} for failed in line["failed"])
    # Whoever watches the folder is not told, either.
    (out / "metrics.jsonl").write_text(
        json.dumps({**result.history[0], "dropped": [{"reason": "was ill"}]}) + "\n"
    )
    with caplog.at_level(logging.WARNING):
        RunFollower(RunFolder(out), []).look()
    assert "round 1: a client is left out: was ill" in caplog.text


def test_without_an_answer_the_round_costs_the_same() -> None:
    # A node that is silent has been asked: what was planned is what is spent.
    experiment = private(2, 6)
    federation = local_federation.federation(experiment, 6)
    federation.grid.silent = {100}
    federation.deadline = 0.1
    spent = [r["privacy"]["epsilon"] for r in federation.run().history]
    assert spent == [r["privacy"]["epsilon"] for r in run(experiment).history]


class Stop(Callback):
    """Ends the run in round 2."""

    def on_round(self, record: Any) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt


def test_a_resumed_run_goes_on_with_its_clip_and_what_was_spent(tmp_path: Path) -> None:
    experiment = private(3, quantile=0.5)
    config = {"state-dir": str(tmp_path / "s")}
    federation = local_federation.federation(experiment, node_config=config)
    with pytest.raises(KeyboardInterrupt):
        federation.run(tmp_path / "run", callbacks=[Stop()])
    assert_same(federation.run(tmp_path / "run", resume=True), run(experiment))


class Broken(FedAvg[ModelState]):
    """Client 1 sends NaN."""

    def reply(self, run: LocalRun) -> Payload:
        sent = super().reply(run)
        if run.client.id != 1:
            return sent
        return Payload(
            {n: (t * float("nan")).to(t.dtype) for n, t in sent.tensors.items()}, sent.scalars
        )


def test_what_a_client_withholds_is_said_and_does_not_stop_the_run() -> None:
    experiment = private(1, 6).but(method=Broken(local=tiny.quick()))
    here = run(experiment)
    ((dropped,),) = [record["dropped"] for record in here.history]
    assert dropped["client"] == 1 and "sent NaN or infinity in model/" in dropped["reason"]
    for nodes in (3, 6):  # two clients a node, or one
        assert_same(local_federation.federation(experiment, nodes).run(), here)


# Nodes that demand privacy.


@pytest.mark.parametrize(
    ("config", "privacy", "reason"),
    [
        ({"require-privacy": True}, None, "answers private runs only"),
        ({"max-clip": 1.0}, None, "answers private runs only"),
        ({"max-clip": 0.5}, {"clip": 1.0}, r"clips to 0.5 at most \(max-clip\), not to 1"),
        ({"min-noise": 1.0}, {"simulated": False}, r"adds noise of 1 S at least .*not of 0 S"),
        ({"min-noise": 1.0}, {"model": "local"}, "adds no simulated noise"),
        (
            {"min-noise": 3.0},
            {"model": "local", "noise": 2.0, "epsilon": 1e6, "simulated": False},
            "adds noise of 3 S at least .*not of 2 S",
        ),
    ],
)
def test_a_node_answers_nothing_that_is_less_private_than_it_demands(
    config: dict[str, Any], privacy: dict[str, Any] | None, reason: str
) -> None:
    experiment = tiny.experiment(rounds=2) if privacy is None else private(2, 6, **privacy)
    federation = local_federation.federation(experiment, 6, node_config=config)
    replies = sent_up(federation)
    with pytest.raises(RunStopped, match=f"every client failed, .*{reason}"):
        federation.run()
    assert not any(payloads for payloads, _ in replies)


def test_a_node_answers_what_is_as_private_as_it_demands() -> None:
    experiment = private(2, 6, model="local", noise=4.0, epsilon=1e6, simulated=False)
    config = {"require-privacy": True, "max-clip": 1.0, "min-noise": 4.0}
    found = local_federation.federation(experiment, node_config=config).run()
    assert [record["dropped"] for record in found.history] == [[], []]


def test_a_server_that_raises_the_clip_in_mid_run_is_not_answered() -> None:
    # S = 0.01 clips nearly every update, so that it goes up for round 2.
    experiment = private(3, 6, quantile=0.99, clip=0.01, noise=1e-3, epsilon=1e12)
    federation = local_federation.federation(experiment, node_config={"max-clip": 0.011})
    with pytest.raises(RunStopped, match=r"round 2: every client failed, .*max-clip"):
        federation.run()
    told = [payloads[0].scalars[CLIP] for payloads, _ in messages(federation)]
    assert told[0] == 0.01
    assert told[-1] == run(experiment).history[0]["privacy"]["next_clip"] > 0.011


def test_what_is_asked_outside_of_training_is_not_answered_in_the_clear() -> None:
    # Tests of clients' own models bypass protection; a lying server would call its question one.
    experiment = private(1, 6).but(method=case("per-fedavg").make_method())
    federation = local_federation.federation(experiment, node_config={"require-privacy": True})
    replies = sent_up(federation)
    with pytest.raises(RunStopped, match=r"no client's own model can be tested.*not clipped"):
        federation.run()
    trained = [payloads for payloads, notes in replies if notes["kind"] == "done"]
    assert sum(map(bool, trained)) == 3  # one sum a node, of the only round


@pytest.mark.parametrize(
    "config",
    [{"require-privacy": "yes"}, {"max-clip": True}, {"min-noise": -1}, {"max-clip": "small"}],
)
def test_a_wrong_demand_is_not_taken_for_none(config: dict[str, Any]) -> None:
    with pytest.raises(PublicError, match=f"has a {next(iter(config))} in its --node-config"):
        Demands.of(config)


# The deployed app.


def private_fields(**more: Any) -> dict[str, Any]:
    return {"privacy.epsilon": 20.0, "privacy.simulated": True, **more}


def test_a_deployed_app_gives_the_bits_and_the_budget_of_an_embedded_run(tmp_path: Path) -> None:
    result = served(FEDAVG, tmp_path / "run", **private_fields(**{"privacy.quantile": 0.5}))
    privacy = Privacy(epsilon=20.0, simulated=True, quantile=0.5)
    assert_same(result, run(tiny.experiment(FEDAVG, tiny.norm_model, rounds=2, privacy=privacy)))
    assert "epsilon = 20" in (tmp_path / "run" / "experiment.toml").read_text()


def test_an_infinite_epsilon_is_no_privacy(tmp_path: Path) -> None:
    result = served(FEDAVG, tmp_path / "run", **private_fields(**{"privacy.epsilon": float("inf")}))
    assert "privacy" not in result.metrics


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"privacy.epsilon": -1.0}, "epsilon"),
        ({"privacy.epsilon": 8.0, "privacy.clips": 1.0}, "clips"),
    ],
)
def test_wrong_fields_are_refused(fields: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises((FedtailError, ValueError), match=reason):
        served(FEDAVG, tmp_path / "run", **fields)
    assert not (tmp_path / "run").exists()


def test_clients_own_models_are_not_tested_in_a_private_federation(tmp_path: Path) -> None:
    method = case("per-fedavg").make_method()
    with pytest.raises(FedtailError, match="'per-fedavg' has clients' own models tested"):
        served(method, tmp_path / "run", **private_fields())
    assert not (tmp_path / "run").exists()


def test_terms_travel_with_every_message() -> None:
    federation = local_federation.federation(private(1, 6, model="local"))
    federation.run()
    told = [notes[TERMS] for _, notes in messages(federation)]
    assert told and all(t["sigma"] > 0 and t["privacy"]["model"] == "local" for t in told)
