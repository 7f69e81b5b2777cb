"""Local-only: nothing is averaged, every client's model is kept and tested."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from torch import nn

from fedtail import IID, Arrays, Callback, Experiment, FedAvg, LocalOnly, run
from fedtail.engines.executor import Done, Job, Serial
from fedtail.methods.local_only import LocalOnlyState
from fedtail.models import SplitModel
from fedtail.state import digest

MODEL_BYTES = 4 * (192 * 6 + 6 + 6 * 4 + 4)


class Watch(Callback):
    """Keeps the last states."""

    def __init__(self) -> None:
        self.state: Any = None
        self.clients: Any = None

    def on_snapshot(self, snapshot: Any) -> None:
        self.state, self.clients = snapshot.state, snapshot.client_states


def two_clients(rounds: int, **fields: Any) -> tuple[Experiment, Watch]:
    """Return one sample of class 0 and three of class 1, x = 1, w = 0, rate 1."""

    def model() -> nn.Module:
        made = nn.Linear(1, 2, bias=False)
        nn.init.zeros_(made.weight)
        return made

    x, y = np.ones((4, 1), np.float32), np.array([0, 1, 1, 1])
    data = Arrays(x, y, x, y, client_train=y, normalisation="none")
    chosen = Experiment(
        method=LocalOnly(local={"lr": 1.0, "batch_size": 3}),
        data=data,
        model=model,
        partition="natural",
        rounds=rounds,
        device="cpu",
        **fields,
    )
    return chosen, Watch()


def test_two_rounds_by_hand() -> None:
    # Softmax regression from 0, the weights stay (a, -a), the gradient of class 0 is s(2a) - 1.
    # Client 0: a = 1/2, then a = 1/2 + 1 - s(1) = 0.768941. Client 1 is its mirror image.
    chosen, watch = two_clients(2)
    result = run(chosen, callbacks=[watch])
    found = [watch.clients[k]["model/weight"].flatten().tolist() for k in (0, 1)]
    assert found[0] == pytest.approx([0.768941, -0.768941], abs=1e-6)
    assert found[1] == pytest.approx([-0.768941, 0.768941], abs=1e-6)

    # Tested on one sample of class 0 and three of class 1: client 0 has 1/4 right, client 1 3/4.
    last = result.metrics
    assert last["personal"]["mean"]["accuracy"] == pytest.approx(0.5)
    assert last["personal"]["mean"]["per_class"] == [0.5, 0.5]
    assert last["personal"]["accuracy"] == pytest.approx([0.25, 0.375, 0.5, 0.625, 0.75])
    assert last["personal"]["balanced_accuracy"] == [0.5] * 5
    assert last["personal"]["models"] == 2

    # The client with the most samples is the second: its model is shipped.
    assert result.tensors["weight"].flatten().tolist() == found[1]
    assert last["accuracy"] == 0.75
    assert last["per_class"] == [0.0, 1.0]


@pytest.mark.parametrize("model", [tiny.plain_model, tiny.norm_model, tiny.dropout_model])
def test_with_one_client_it_is_fedavg_to_the_bit(model: Any) -> None:
    local = tiny.quick(momentum=0.9)
    given = {"partition": IID(), "clients": 1, "per_round": 1}
    ours = run(tiny.experiment(LocalOnly(local=local), model, **given))
    theirs = run(tiny.experiment(FedAvg(local=local), model, **given))
    assert ours.digest == theirs.digest
    for key in ("accuracy", "per_class", "loss", "ece", "few"):
        assert ours.metrics[key] == theirs.metrics[key]


def test_a_client_is_sent_a_model_once_and_sends_none() -> None:
    # Round 1: the initial model down to six clients. Each says two numbers, 16 bytes. At the end
    # the largest client, number 0 with 12 samples, is asked for its model.
    result = run(tiny.experiment(LocalOnly(local=tiny.quick()), per_round=6))
    assert [record["bytes_down"] for record in result.history] == [6 * MODEL_BYTES, 0, 0]
    assert [record["bytes_up"] for record in result.history] == [96, 96, 96 + MODEL_BYTES]


def test_who_was_never_asked_has_the_initial_model() -> None:
    # Two of six clients train in one round; the others are tested as they began.
    watch = Watch()
    chosen = tiny.experiment(LocalOnly(local=tiny.quick()), rounds=1, per_round=2)
    result = run(chosen, callbacks=[watch])
    assert result.metrics["personal"]["models"] == 6
    assert sorted(watch.clients) == result.metrics["clients"]
    assert sorted(map(int, watch.state.samples)) == result.metrics["clients"]


def test_a_client_whose_answer_was_lost_begins_again() -> None:
    class Lossy(Serial):
        def perform(self, jobs: Any, total: Any = None) -> list[Done]:
            return [
                self._lost(job, done) for job, done in zip(jobs, super().perform(jobs), strict=True)
            ]

        def _lost(self, job: Job, done: Done) -> Done:
            bad = job.clock.round == 1 and job.task.client == 0 and job.task.action == "train"
            return Done(None, job.state, "lost") if bad else done

    watch = Watch()
    chosen = tiny.experiment(LocalOnly(local=tiny.quick()), rounds=2, per_round=6)
    result = tiny.run_with(chosen, lambda runtime: Lossy(runtime), [watch])
    # It is sent the initial model a second time.
    assert result.history[1]["bytes_down"] == MODEL_BYTES
    assert sorted(watch.clients) == list(range(6))


def test_the_server_keeps_the_initial_model() -> None:
    chosen = tiny.experiment(LocalOnly(local=tiny.quick()))
    short, long = run(chosen.but(rounds=1)), run(chosen)
    assert digest(short.state.model) == digest(long.state.model) != long.digest
    assert isinstance(long.state, LocalOnlyState)


def test_clients_do_not_learn_of_each_other() -> None:
    # Client 0's model is the same whether the others train or not. With this seed a cohort of one
    # is client 0.
    chosen = tiny.experiment(LocalOnly(local=tiny.quick()), tiny.norm_model, rounds=1)
    one = SplitModel(tiny.norm_model())
    seed = next(s for s in range(99) if tiny.server(one, 6, seed=s, per_round=1).cohort() == [0])
    kept = []
    for per_round in (1, 6):
        watch = Watch()
        run(chosen.but(seed=seed, per_round=per_round), callbacks=[watch])
        assert len(watch.clients) == per_round
        kept.append(digest(watch.clients[0]))
    assert kept[0] == kept[1]


def test_the_boxes_come_again_after_a_resume(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    class Stopping(Callback):
        def on_round(self, record: Any) -> None:
            if record["round"] == 3:
                raise Stop

    chosen = tiny.experiment(LocalOnly(local=tiny.quick()), tiny.norm_model)
    with pytest.raises(Stop):
        run(chosen, out=tmp_path / "run", callbacks=[Stopping()])
    resumed = run(chosen, out=tmp_path / "run", resume=True)
    whole = run(chosen)
    assert resumed.metrics["personal"] == whole.metrics["personal"]
    assert resumed.digest == whole.digest


def test_a_prior_is_told_every_round() -> None:
    method = LocalOnly(local=tiny.quick(), loss="balanced_softmax", prior="global")
    history = run(tiny.experiment(method, per_round=6)).history
    # Four float32 counts to each of six clients; the model only once.
    assert [r["bytes_down"] for r in history] == [6 * (MODEL_BYTES + 16), 96, 96]
