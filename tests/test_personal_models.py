"""Clients' own models are tested one by one, and testing them changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from fedtail import Arrays, Callback, FedAvg, FedLoGe, FedRoD, ModelState, Payload, RunStopped, run
from fedtail.engines.executor import Serial
from fedtail.engines.runtime import Runtime
from fedtail.forms import Form, like
from fedtail.methods import action
from fedtail.metrics.scores import SCORES
from fedtail.models import SplitModel
from fedtail.protocol import Client, Server, Task
from fedtail.scoring import MODELS_AT_ONCE


class Constant(FedAvg[ModelState]):
    """At test time client k has a model that answers class k mod 4, whatever it is shown."""

    def personal(self, s: ModelState, server: Server) -> list[Task]:
        payload = self.broadcast(s, server)
        return [Task(client, "insist", payload) for client in server.clients]

    @action
    def insist(self, payload: Payload, client: Client) -> Payload:
        client.state["drawn"] = torch.rand(1, generator=client.generator("draw"))
        model = {f"model/{n}": torch.zeros_like(t) for n, t in payload.group("model").items()}
        model["model/3.bias"][client.id % tiny.CLASSES] = 1.0
        return Payload(model)

    def insist_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        return Form().group("model", like(model.live()))


class Failing(Constant):
    """Client 2 fails, and client 3 sends a model that has diverged."""

    @action
    def insist(self, payload: Payload, client: Client) -> Payload:
        if client.id == 2:
            raise RuntimeError("gone")
        answer = super().insist(payload, client)
        if client.id == 3:
            answer.tensors["model/3.bias"][0] = torch.nan
        return answer


class Watch(Callback):
    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.states: list[Any] = []

    def on_warning(self, message: str) -> None:
        self.warnings.append(message)

    def on_snapshot(self, snapshot: Any) -> None:
        self.states.append(snapshot.client_states)


def plain(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != "seconds"}


def test_they_are_scored_beside_the_model_that_is_shipped() -> None:
    # Every test class has 3 of 12 samples, so a model that answers one class is right in 1/4.
    # Clients 0 to 5 answer 0, 1, 2, 3, 0, 1: class accuracies are (2, 2, 1, 1)/6. Of four classes
    # the rarest, 3, is few: client 3 alone has it right, so the few are (0, 0, 0, 1, 0, 0).
    result = run(tiny.experiment(Constant(local=tiny.quick())))
    last = result.metrics
    personal = last["personal"]
    assert personal["mean"]["accuracy"] == personal["mean"]["balanced_accuracy"] == 0.25
    assert personal["mean"]["per_class"] == pytest.approx([2 / 6, 2 / 6, 1 / 6, 1 / 6])
    assert personal["mean"]["few"] == pytest.approx(1 / 6)
    assert personal["mean"]["worst_class"] == 0.0
    assert (personal["models"], personal["tested_on"]) == (6, "test set")
    assert personal["accuracy"] == [0.25] * 5
    assert personal["few"] == [0.0, 0.0, 0.0, 0.0, 1.0]
    ours = run(tiny.experiment(FedAvg(local=tiny.quick()))).metrics
    assert {key: last[key] for key in (*SCORES, "per_class")} == {
        key: ours[key] for key in (*SCORES, "per_class")
    }


def test_each_is_tested_on_its_own_clients_samples() -> None:
    # Twelve test samples, three of each class: 0 0 0 1 1 1 2 2 2 3 3 3. Client 0, which answers 0,
    # has the first four (3/4 right); client 1, which answers 1, the next four (2/4); client 3,
    # which answers 3, one of class 2 and one of class 3 (1/2); a client that does not train has the
    # rest. Clients 2, 4 and 5 have none.
    given = tiny.arrays()
    owner = np.array([0] * 4 + [1] * 4 + [3, 9, 9, 3])
    data = type(tiny.source())(**given, client_test=owner)
    chosen = tiny.experiment(Constant(local=tiny.quick()), rounds=1).but(data=data)
    personal = run(chosen).metrics["personal"]
    assert (personal["models"], personal["tested_on"]) == (3, "own samples")
    # Of 1/2, 1/2, 3/4 the third quartile lies half-way between the last two.
    assert personal["accuracy"] == [0.5, 0.5, 0.5, 0.625, 0.75]
    assert personal["mean"]["accuracy"] == pytest.approx(7 / 12)
    # Class 1 is a mean of two: client 0 has one of it wrong, client 1 has two of two right.
    assert personal["mean"]["per_class"] == pytest.approx([1.0, 0.5, 0.0, 1.0])


def test_where_nobody_who_trains_has_test_samples_it_is_the_test_set() -> None:
    data = type(tiny.source())(**tiny.arrays(), client_test=np.full(12, 9))
    personal = run(tiny.experiment(Constant(), rounds=1).but(data=data)).metrics["personal"]
    assert (personal["models"], personal["tested_on"]) == (6, "test set")


def test_testing_them_changes_nothing_else() -> None:
    watch = Watch()
    ours = run(tiny.experiment(Constant(local=tiny.quick())), callbacks=[watch])
    fedavg = run(tiny.experiment(FedAvg(local=tiny.quick())))
    assert ours.digest == fedavg.digest
    assert watch.states == [{}, {}, {}]
    traffic = ("bytes_up", "bytes_down", "traffic", "clients", "dropped")
    for mine, theirs in zip(ours.history, fedavg.history, strict=True):
        assert [mine[key] for key in traffic] == [theirs[key] for key in traffic]


def test_a_round_that_is_not_tested_has_no_boxes() -> None:
    first, second = run(tiny.experiment(Constant(), rounds=2, eval_every=2)).history
    assert "personal" not in first
    assert second["personal"]["models"] == 6
    assert "personal" not in run(tiny.experiment(rounds=1)).metrics


def test_a_model_that_cannot_be_tested_is_named_and_left_out() -> None:
    watch = Watch()
    chosen = tiny.experiment(Failing(local=tiny.quick()), rounds=1, on_client_error="drop")
    result = run(chosen, callbacks=[watch])
    assert result.metrics["personal"]["models"] == 4
    assert (
        result.metrics["personal"]["mean"]["few"] == 0.0
    )  # the only model that answers class 3 is out
    assert result.metrics["dropped"] == []
    first, second = watch.warnings
    assert first.startswith("after round 1: client 2 is left out: RuntimeError: gone (test_person")
    assert second == "after round 1: client 3 is left out: sent NaN or infinity in model/3.bias"


def test_a_failure_while_they_are_tested_stops_the_run() -> None:
    with pytest.raises(RuntimeError, match="gone") as caught:
        run(tiny.experiment(Failing(local=tiny.quick()), rounds=1))
    assert caught.value.__notes__ == ["raised by the method: client 2, action 'insist', round 1"]


class AllFailing(Constant):
    """No client has what it needs."""

    @action
    def insist(self, payload: Payload, client: Client) -> Payload:
        return Payload({"model/3.bias": payload.tensors["model/no such tensor"]})


@pytest.mark.parametrize("policy", ["stop", "drop"])
def test_if_none_of_them_can_be_tested_the_run_stops(policy: str) -> None:
    # It once ended well, with an accuracy of None.
    chosen = tiny.experiment(AllFailing(local=tiny.quick()), on_client_error=policy)
    with pytest.raises(KeyError if policy == "stop" else RunStopped, match="no such tensor"):
        run(chosen)


def test_only_a_few_models_are_in_memory() -> None:
    sizes: list[int] = []

    class Counting(Serial):
        def perform(self, jobs: Any, total: Any = None) -> Any:
            sizes.append(len(jobs))
            return list(super().perform(jobs))

    owner = tiny.arrays()
    samples = len(owner["y_train"])
    owner["client_train"] = torch.arange(samples).numpy() % 20
    chosen = tiny.experiment(Constant(), rounds=1).but(data=Arrays(**owner, normalisation="none"))
    result = tiny.run_with(chosen, lambda runtime: Counting(runtime))
    assert result.metrics["personal"]["models"] == 20
    assert sizes == [4, MODELS_AT_ONCE, MODELS_AT_ONCE, 20 - 2 * MODELS_AT_ONCE]


def test_separate_hands_and_resuming_give_the_same_numbers(tmp_path: Path) -> None:
    chosen = tiny.experiment(Constant(local=tiny.quick()))
    alone = run(chosen, out=tmp_path / "run")
    apart = tiny.run_with(chosen, lambda runtime: tiny.Isolated(runtime))
    assert [plain(r) for r in alone.history] == [plain(r) for r in apart.history]
    lines = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(lines[-1])["personal"] == alone.metrics["personal"]


def test_the_streams_are_those_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    # What a client draws for its own model is drawn neither in training nor after it.
    turns: list[tuple[str, int]] = []
    perform = Runtime.perform

    def noting(self: Runtime, task: Task, state: Any, clock: Any) -> Payload:
        turns.append((clock.phase, clock.turn))
        return perform(self, task, state, clock)

    monkeypatch.setattr(Runtime, "perform", noting)
    run(tiny.experiment(Constant(local=tiny.quick()), rounds=1))
    assert turns == [("training", 0)] * 4 + [("test", 0)] * 6


class OwnBodies(Constant):
    """Client k's model differs from the next one's in its first layer, too."""

    @action
    def insist(self, payload: Payload, client: Client) -> Payload:
        answer = super().insist(payload, client)
        answer.tensors["model/1.weight"][0] = client.id
        return answer


def passes(monkeypatch: pytest.MonkeyPatch, method: Any) -> tuple[Any, int]:
    """Run two rounds; return the last scores of own models, and how often the body was run."""
    bodies: list[int] = []
    features = SplitModel.features

    def counting(self: SplitModel, x: torch.Tensor) -> torch.Tensor:
        bodies.append(len(x))
        return features(self, x)

    with monkeypatch.context() as patch:
        patch.setattr(SplitModel, "features", counting)
        last = run(tiny.experiment(method.but(local=tiny.quick()), rounds=2, eval_every=2)).metrics
    return last["personal"], len(bodies)


@pytest.mark.parametrize("method", [Constant(), FedRoD(), FedLoGe()])
def test_one_pass_of_the_body_is_for_all_that_share_it(
    method: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, bodies = passes(monkeypatch, method)
    assert bodies == 1  # of twelve test samples, for six models
    monkeypatch.setattr("fedtail.scoring.evaluated_together", lambda runtime, models: None)
    alone, bodies = passes(monkeypatch, method)
    assert bodies == 0
    for key in ("loss", "ece", "per_class"):  # float32, were another kernel chosen for the head
        assert together["mean"][key] == pytest.approx(alone["mean"][key], abs=1e-6)
    assert together["accuracy"] == pytest.approx(alone["accuracy"])
    assert together["models"] == alone["models"] == 6


def test_bodies_that_differ_are_run_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    personal, bodies = passes(monkeypatch, OwnBodies())
    assert bodies == 0
    assert personal["mean"]["per_class"] == pytest.approx([2 / 6, 2 / 6, 1 / 6, 1 / 6])
