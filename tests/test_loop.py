"""The loop: what a round leaves in the record, what it costs, and what it must not touch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor

from fedtail import Callback, FedAvg, FedtailError, GlobalPrior, Payload, RunStopped, run
from fedtail.callbacks import Record, Snapshot
from fedtail.engines.executor import Done, Job, Serial
from fedtail.engines.runtime import Runtime
from fedtail.forms import Form, Like, Total
from fedtail.methods import ModelState, action
from fedtail.models import SplitModel
from fedtail.protocol import Client, Exchange, Server, Task
from fedtail.reduce import Reduced
from fedtail.setting import prepare
from fedtail.state import digest
from fedtail.totals import Sums

# The model of `tiny.plain_model`: 192 x 6 + 6 and 6 x 4 + 4 float32 numbers.
MODEL_BYTES = 4 * (192 * 6 + 6 + 6 * 4 + 4)


class Watch(Callback):
    """Keeps everything it is told."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.records: list[Record] = []
        self.snapshots: list[Snapshot] = []

    def on_warning(self, message: str) -> None:
        self.warnings.append(message)

    def on_round(self, record: Record) -> None:
        self.records.append(record)

    def on_snapshot(self, snapshot: Snapshot) -> None:
        self.snapshots.append(snapshot)


@dataclass(frozen=True)
class Faulty:
    """Hands that spoil the answers of some clients in some rounds."""

    runtime: Runtime
    spoiled: Sequence[tuple[int, int]]  # (round, client)

    def perform(self, jobs: Sequence[Job], total: Sums | None = None) -> list[Done]:
        return [
            Done(None, job.state, "lost") if self._is_bad(job) else done
            for job, done in zip(jobs, Serial(self.runtime).perform(jobs), strict=True)
        ]

    def _is_bad(self, job: Job) -> bool:
        return (job.clock.round, job.task.client) in self.spoiled

    def evaluate(self, tensors: Any) -> Any:
        return Serial(self.runtime).evaluate(tensors)

    def close(self) -> None:
        """Nothing was started."""


def plain(record: Record) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != "seconds"}


def test_the_keys_of_a_record_are_those_of_the_design_page() -> None:
    record = run(tiny.experiment(rounds=1)).history[0]
    assert list(record) == [
        "round",
        "accuracy",
        "balanced_accuracy",
        "many",
        "medium",
        "few",
        "tail",
        "worst_class",
        "per_class",
        "loss",
        "ece",
        "bytes_up",
        "bytes_down",
        "seconds",
        "clients",
        "dropped",
        "traffic",
        "method",
    ]


def test_bytes_are_those_of_the_payloads() -> None:
    # Down: the model. Up: the model and two scalars (samples, steps) of 8 bytes each.
    record = run(tiny.experiment(rounds=1)).history[0]
    assert len(record["clients"]) == 4
    up = MODEL_BYTES + 16
    assert record["traffic"] == {str(k): [MODEL_BYTES, up] for k in record["clients"]}
    assert record["bytes_down"] == 4 * MODEL_BYTES
    assert record["bytes_up"] == 4 * up


def test_the_preliminary_exchange_is_paid_in_the_first_round() -> None:
    # Every client is asked (0 bytes) and sends four int64 counts (32 bytes). Afterwards the cohort
    # is told the prior: four float32, 16 bytes.
    method: FedAvg[ModelState] = FedAvg(local=tiny.quick(), prior=GlobalPrior())
    first, second = run(tiny.experiment(method, rounds=2)).history
    assert first["bytes_up"] == 6 * 32 + 4 * (MODEL_BYTES + 16)
    assert first["bytes_down"] == second["bytes_down"] == 4 * (MODEL_BYTES + 16)
    assert second["bytes_up"] == 4 * (MODEL_BYTES + 16)
    # Who answered the preliminary question is not yet who trained.
    assert len(first["clients"]) == 4
    assert len(first["traffic"]) == 6


def test_a_client_that_was_lost_costs_what_it_was_sent() -> None:
    everyone = tiny.experiment(rounds=1, per_round=6)
    result = tiny.run_with(everyone, lambda runtime: Faulty(runtime, [(1, 2)]))
    (record,) = result.history
    assert record["traffic"]["2"] == [MODEL_BYTES, 0]
    assert record["clients"] == [0, 1, 3, 4, 5]
    assert record["dropped"] == [{"client": 2, "reason": "lost"}]


def test_evaluation_every_so_many_rounds_and_the_last() -> None:
    history = run(tiny.experiment(rounds=5, eval_every=2)).history
    assert [record["accuracy"] is not None for record in history] == [
        False,
        True,
        False,
        True,
        True,
    ]
    assert all(record["per_class"] is None for record in (history[0], history[2]))
    assert all(record["bytes_up"] for record in history)


def test_how_often_one_looks_changes_nothing() -> None:
    often, seldom = run(tiny.experiment(rounds=4)), run(tiny.experiment(rounds=4, eval_every=3))
    assert often.digest == seldom.digest
    assert plain(often.history[-1]) == plain(seldom.history[-1])


def test_a_round_without_a_valid_update_keeps_the_model_and_says_so() -> None:
    # Prepare: everyone fails in round 2.
    watch = Watch()
    chosen = tiny.experiment(rounds=2, per_round=6)

    # Execute
    lost = [(2, k) for k in range(6)]
    result = tiny.run_with(chosen, lambda runtime: Faulty(runtime, lost), [watch])

    # Assert
    after = [digest(snapshot.state.model) for snapshot in watch.snapshots]
    assert after[0] == after[1]
    assert watch.warnings[-1] == "round 2: no valid update, the model stays as it was"
    assert watch.warnings[0] == "round 2: client 0 is left out: lost"
    assert result.history[1]["clients"] == []


def test_too_few_updates_stop_the_run() -> None:
    chosen = tiny.experiment(per_round=6, min_clients=5)
    with pytest.raises(RunStopped, match="round 2 has 4 valid updates, fewer than min_clients = 5"):
        tiny.run_with(chosen, lambda runtime: Faulty(runtime, [(2, 0), (2, 1)]))


def test_answers_to_the_preliminary_question_are_no_updates() -> None:
    method: FedAvg[ModelState] = FedAvg(local=tiny.quick(), prior=GlobalPrior())
    chosen = tiny.experiment(method, per_round=6, min_clients=5)
    with pytest.raises(RunStopped, match="round 1 has 4 valid updates"):
        tiny.run_with(chosen, lambda runtime: Faulty(runtime, [(1, 0), (1, 1)]))


def test_no_answer_to_the_preliminary_question_stops_the_run() -> None:
    chosen = tiny.experiment(FedAvg(local=tiny.quick(), prior=GlobalPrior()))
    lost = [(0, k) for k in range(6)]
    with pytest.raises(RunStopped, match="no client answered the preliminary exchange"):
        tiny.run_with(chosen, lambda runtime: Faulty(runtime, lost))


class Afterwards(FedAvg[ModelState]):
    """After training, clients draw numbers, remember them, and the server adds them up."""

    def finalize(self, s: ModelState, server: Server) -> Exchange[ModelState]:
        found = yield [Task(k, "draw", Payload()) for k in server.clients]
        name = "3.bias"
        return replace(s, model={**s.model, name: s.model[name] + found["drawn"]["sum"]})

    @action
    def draw(self, payload: Payload, client: Client) -> Payload:
        client.state["drawn"] = torch.rand(tiny.CLASSES, generator=client.generator("draw"))
        return Payload({"drawn/sum": client.state["drawn"]})

    def draw_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        return Form().group("drawn", {"sum": Like((classes,))}, Total())


def test_what_comes_after_training_happens_on_a_copy() -> None:
    # Prepare
    watch = Watch()

    # Execute
    with_it = run(tiny.experiment(Afterwards(local=tiny.quick())), callbacks=[watch])
    without = run(tiny.experiment(FedAvg(local=tiny.quick())))

    # Assert: neither the trained state nor the clients know of it; what is shipped does.
    assert digest(with_it.state.model) == without.digest != with_it.digest
    assert all(snapshot.client_states == {} for snapshot in watch.snapshots)


class Absent(Afterwards):
    """After training, one client fails."""

    @action
    def draw(self, payload: Payload, client: Client) -> Payload:
        if client.id == 2:
            raise RuntimeError("gone")
        return super().draw(payload, client)


def test_a_client_lost_after_training_is_named() -> None:
    watch = Watch()
    chosen = tiny.experiment(Absent(local=tiny.quick()), rounds=1, on_client_error="drop")
    run(chosen, callbacks=[watch])
    (warning,) = watch.warnings
    assert warning.startswith("after round 1: client 2 is left out: RuntimeError: gone (test_loop.")


def test_what_is_shipped_is_what_was_tested() -> None:
    # The numbers that clients draw after training are the same in the test and at the end.
    result = run(tiny.experiment(Afterwards(local=tiny.quick())))
    x = prepare(tiny.experiment()).federation.test_batch(0, 12)
    predicted = result.network.eval()(x[0]).argmax(1)
    assert result.metrics["accuracy"] == pytest.approx(float((predicted == x[1]).double().mean()))
    assert _final_bias(result.tensors, result.state) == _final_bias_of_the_test()


def _final_bias(tensors: dict[str, Tensor], state: ModelState) -> list[float]:
    return (tensors["3.bias"] - state.model["3.bias"]).tolist()


def _final_bias_of_the_test() -> list[float]:
    """Return what the last test added to the bias."""
    seen: list[dict[str, Tensor]] = []

    class Seeing(Serial):
        def evaluate(self, tensors: Any) -> Any:
            seen.append(dict(tensors))
            return super().evaluate(tensors)

    result = tiny.run_with(tiny.experiment(Afterwards(local=tiny.quick())), Seeing)
    return _final_bias(seen[-1], result.state)


def test_what_comes_after_training_is_paid_once_in_the_last_round() -> None:
    # Each of six clients sends four float32 numbers, 16 bytes.
    history = run(tiny.experiment(Afterwards(local=tiny.quick()))).history
    training = 4 * (MODEL_BYTES + 16)
    assert [record["bytes_up"] for record in history] == [training, training, training + 6 * 16]
    last = history[-1]
    assert sum(up for _, up in last["traffic"].values()) == last["bytes_up"]
    assert len(last["clients"]) == 4


def test_the_same_seed_gives_the_same_bits() -> None:
    one, again = (run(tiny.experiment(model=tiny.dropout_model)) for _ in range(2))
    assert one.digest == again.digest
    assert [plain(r) for r in one.history] == [plain(r) for r in again.history]


def test_another_seed_gives_others() -> None:
    digests = {run(tiny.experiment(seed=seed)).digest for seed in range(3)}
    assert len(digests) == 3


def test_the_number_of_threads_outside_does_not_matter() -> None:
    torch.set_num_threads(1)
    one = run(tiny.experiment()).digest
    torch.set_num_threads(2)
    assert run(tiny.experiment()).digest == one
    assert torch.get_num_threads() == 2


def test_the_streams_of_the_user_are_not_touched() -> None:
    before = tiny.global_streams()
    run(tiny.experiment(model=tiny.dropout_model))
    assert tiny.global_streams() == before


def test_the_network_that_is_returned_is_the_model_that_was_tested() -> None:
    result = run(tiny.experiment(model=tiny.norm_model))
    assert result.network.state_dict().keys() == tiny.norm_model().state_dict().keys()
    for name, tensor in result.network.state_dict().items():
        assert torch.equal(tensor, result.tensors[name])


def test_without_a_folder_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(tiny.experiment(rounds=1)).folder is None
    assert list(tmp_path.iterdir()) == []


def test_resuming_needs_a_folder() -> None:
    with pytest.raises(FedtailError, match="resume needs the run folder"):
        run(tiny.experiment(), resume=True)


def test_another_experiment_is_not_resumed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(tiny.experiment(rounds=1), out=out)
    with pytest.raises(FedtailError, match="holds a run with another 'seed'"):
        run(tiny.experiment(rounds=1, seed=1), out=out, resume=True)
    # The number of workers changes nothing, so it may differ.
    assert run(tiny.experiment(rounds=1, name="again"), out=out, resume=True).metrics["round"] == 1


def test_a_run_from_before_a_field_goes_on(tmp_path: Path) -> None:
    whole = run(tiny.experiment(rounds=2))
    out = tmp_path / "out"
    run(tiny.experiment(rounds=1), out=out)
    described = (out / "experiment.toml").read_text().splitlines(keepends=True)
    since = ("precision = ", "test = ", "# The settings")  # the last line, a digest of the others
    older = [line for line in described if not line.startswith(since)]
    assert len(older) == len(described) - 3
    (out / "experiment.toml").write_text("".join(older))
    assert run(tiny.experiment(rounds=2), out=out, resume=True).digest == whole.digest


def test_a_folder_holds_the_whole_run(tmp_path: Path) -> None:
    result = run(tiny.experiment(), out=tmp_path / "run")
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert names == [
        "checkpoint",
        "confusion.json",
        "digests.json",
        "env.json",
        "experiment.toml",
        "metrics.jsonl",
        "model.json",
        "model.safetensors",
        "model.safetensors.sha256",
        "report.html",
        "split.json",
    ]
    assert result.folder == tmp_path / "run"


def test_a_wrong_experiment_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(FedtailError, match="per_round"):
        run(tiny.experiment(per_round=7), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_callbacks_are_closed_whatever_happens() -> None:
    closed: list[int] = []

    class Failing(Callback):
        def on_round(self, record: Record) -> None:
            raise KeyError

        def close(self) -> None:
            closed.append(1)

    with pytest.raises(KeyError):
        run(tiny.experiment(), callbacks=[Failing(), Failing()])
    assert closed == [1, 1]


def test_what_a_method_logs_stands_in_the_record() -> None:
    class Logging(FedAvg[ModelState]):
        def aggregate(self, s: ModelState, found: Reduced, server: Server) -> ModelState:
            server.log("updates", len(found.clients))
            return super().aggregate(s, found, server)

    assert [r["method"] for r in run(tiny.experiment(Logging(local=tiny.quick()))).history] == [
        {"updates": 4}
    ] * 3


def test_workers_leave_the_split_as_it_is(tmp_path: Path) -> None:
    # Labels go to shared memory when workers start; what the folder keeps is computed after that.
    for workers in (0, 2):
        run(tiny.experiment(rounds=1, workers=workers), out=tmp_path / str(workers))
    one, other = ((tmp_path / name / "split.json").read_bytes() for name in ("0", "2"))
    assert one == other
