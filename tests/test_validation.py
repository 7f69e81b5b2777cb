"""Validation: sums of counts over clients, the best round kept, patience, and no look at the test.

Two clients hold four samples of class 0 and two of class 1 each. With a share of one half each
holds out two and one, so that all held-out samples are 4 and 2. A model that always answers class 0
is right in 4 of 6 of them, and one that answers class 1 in 2 of 6. The balanced accuracy of both is
1/2.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import nn

from fedtail import Arrays, Callback, Experiment, FedAvg, FedtailError, Method, ModelState, run
from fedtail.data.federation import Federation
from fedtail.engines.executor import Done, Job, Serial
from fedtail.engines.runtime import Runtime
from fedtail.forms import LARGEST
from fedtail.metrics import RankGroups
from fedtail.protocol import Payload, Server, Update
from fedtail.reduce import Reduced, reduced
from fedtail.scoring import never_validated
from fedtail.setting import prepare
from fedtail.study.runs import read_run
from fedtail.validation import count, form_of_counts, validation_scores

Y = np.array([0, 0, 0, 0, 1, 1] * 2)
OWNER = np.repeat([0, 1], 6)


def linear() -> nn.Module:
    made = nn.Linear(1, 2)
    nn.init.zeros_(made.weight)
    return made


class Scripted(FedAvg[ModelState]):
    """After round r the model answers the r-th class of the script, and the last one for good."""

    script: tuple[int, ...]

    def aggregate(self, s: ModelState, found: Reduced, server: Server) -> ModelState:
        answer = self.script[min(server.round, len(self.script)) - 1]
        bias = torch.zeros(2)
        bias[answer] = server.round  # told apart from every other round's model
        return replace(s, model={"weight": torch.zeros(2, 1), "bias": bias})


def scripted(*script: int, y_test: Any = (0, 0, 1), **fields: Any) -> Experiment:
    y = np.array(y_test)
    x, x_test = np.ones((12, 1), np.float32), np.ones((len(y), 1), np.float32)
    data = Arrays(x, Y, x_test, y, client_train=OWNER, normalisation="none")
    given: dict[str, Any] = {"validation": 0.5, "score": "accuracy", "rounds": len(script)}
    return Experiment(
        method=Scripted(script=script, local=tiny.quick()),
        data=data,
        model=linear,
        partition="natural",
        device="cpu",
        **{**given, **fields},
    )


def validated(result: Any, key: str) -> list[Any]:
    return [record["validation"][key] for record in result.history]


# Scores


def test_the_scores_by_hand() -> None:
    first, second = run(scripted(1, 0)).history
    ours = second["validation"]
    assert (ours["samples"], ours["clients"]) == (6, 2)
    assert first["validation"]["accuracy"] == pytest.approx(2 / 6)
    assert ours["accuracy"] == pytest.approx(4 / 6)
    assert ours["balanced_accuracy"] == first["validation"]["balanced_accuracy"] == 0.5
    assert ours["per_class"] == [1.0, 0.0]
    assert ours["worst_class"] == 0.0
    # Logits (2, 0): the loss is log(1 + e^-2) where it is right, and 2 more where it is wrong. Sums
    # are made of multiples of 2^-26.
    loss = math.log(1 + math.exp(-2)) + 2 * 2 / 6
    assert ours["loss"] == pytest.approx(loss, abs=2**-26)
    assert "kept" not in ours  # the last round's model is shipped


def test_what_it_costs_stands_apart() -> None:
    # Down: four float32 to two clients. Up: two counts of two classes in int64 and a loss, float64.
    record = run(scripted(0)).history[0]
    assert record["validation"]["bytes_down"] == 2 * 16
    assert record["validation"]["bytes_up"] == 2 * (2 * 2 * 8 + 8)
    without = run(scripted(0, validation=0)).history[0]
    assert [record[key] for key in ("bytes_up", "bytes_down", "traffic")] == [
        without[key] for key in ("bytes_up", "bytes_down", "traffic")
    ]


def test_without_anything_held_out_nothing_is_validated() -> None:
    assert "validation" not in run(scripted(0, validation=0)).metrics


def test_only_rounds_that_are_tested_are_validated() -> None:
    history = run(scripted(0, 0, 0, eval_every=2)).history
    assert ["validation" in record for record in history] == [False, True, True]


def test_what_is_held_out_is_not_trained_on() -> None:
    setting = prepare(scripted(0))
    for k in range(2):
        data = setting.federation.client(k)
        assert (len(data), len(data.held_out)) == (3, 3)
        assert not set(data.positions.tolist()) & set(data.held_out.positions.tolist())
        assert data.held_out.labels.tolist().count(0) == 2
    assert setting.class_counts == (4, 2)
    assert setting.federation.size(0) == 6


def test_whole_clients_are_held_out() -> None:
    chosen = tiny.experiment(validation={"share": 0.34, "by": "client"}, per_round=None)
    setting = prepare(chosen)
    assert (len(setting.federation), list(setting.validators)) == (4, [4, 5])
    result = run(chosen)
    assert result.metrics["clients"] == [0, 1, 2, 3]
    held = {int(name) for name in setting.client_names[4:]}
    assert result.metrics["validation"]["samples"] == sum(sum(tiny.COUNTS[k]) for k in held)
    assert result.metrics["validation"]["clients"] == 2
    trained = np.array([tiny.COUNTS[int(k)] for k in setting.client_names[:4]]).sum(axis=0)
    assert setting.class_counts == tuple(trained.tolist())


def test_a_model_that_the_user_did_not_make_is_counted_too() -> None:
    # Experts are tested in their own network, what is shipped without a second head in the user's.
    for name in ("gbme", "paco", "centralised", "ifca", "local-only"):
        result = run(
            tiny.experiment(Method.inside({"name": name}), tiny.norm_model, validation=0.5)
        )
        assert result.metrics["validation"]["samples"] > 0
        assert result.metrics["validation"]["accuracy"] is not None


def test_a_model_that_has_diverged_has_no_loss() -> None:
    setting = prepare(scripted(0))
    model = setting.model.tensors()
    model["bias"] = torch.tensor([math.nan, 0.0])
    clients = [tiny.client(setting.federation, k, setting.model) for k in range(2)]
    updates = [Update(c.id, count(model, c)) for c in clients]
    assert all(float(u.payload.tensors["validation/loss"]) == LARGEST for u in updates)
    found = validation_scores(reduced(updates, form_of_counts(2)), RankGroups(), (4, 2))
    assert found["loss"] is None and found["samples"] == 6


# Keeping and stopping


def test_the_best_round_is_shipped() -> None:
    result = run(scripted(1, 0, 1, 0, keep="best"))
    # Rounds 2 and 4 have 4/6; the first of equals is kept.
    assert validated(result, "kept") == [1, 2, 2, 2]
    assert result.best["round"] == result.metrics["round"] == 2
    assert result.tensors["bias"].tolist() == [2.0, 0.0]
    assert result.metrics["accuracy"] == pytest.approx(2 / 3)
    assert result.history[-1]["round"] == 4
    assert result.stopped == ""


def test_only_rounds_that_may_be_shipped_are_tested() -> None:
    # Rounds 1 and 2 are the best so far, and 4 is the last; what is shipped is the same.
    every, best = (run(scripted(1, 0, 1, 1, keep="best", test=test)) for test in ("every", "best"))
    accuracies = [record["accuracy"] for record in best.history]
    assert accuracies == [pytest.approx(1 / 3), pytest.approx(2 / 3), None, pytest.approx(1 / 3)]
    assert [record["per_class"] is None for record in best.history] == [False, False, True, False]
    assert validated(best, "accuracy") == validated(every, "accuracy")
    assert (best.digest, best.metrics["accuracy"]) == (every.digest, every.metrics["accuracy"])


def test_untested_a_run_ships_the_same_and_reads_no_test_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = run(scripted(1, 0, 1, keep="best"))
    for way in ("test_batch", "test_samples"):
        monkeypatch.delattr(Federation, way)
    result = run(scripted(1, 0, 1, keep="best", test="none"), out=tmp_path / "run")
    assert result.digest == every.digest
    assert validated(result, "accuracy") == validated(every, "accuracy")
    assert [record["accuracy"] for record in result.history] == [None] * 3
    assert not (tmp_path / "run" / "confusion.json").exists()
    found = read_run(tmp_path / "run")
    assert (found.tested, (found.validated or {})["round"]) == (None, 2)


def test_untested_rounds_after_tested_ones_have_no_scores(tmp_path: Path) -> None:
    run(scripted(0, 1, 1, rounds=1), out=tmp_path / "run")
    assert (tmp_path / "run" / "confusion.json").exists()
    run(scripted(0, 1, 1, test="none"), out=tmp_path / "run", resume=True)
    assert not (tmp_path / "run" / "confusion.json").exists()
    assert read_run(tmp_path / "run").tested is None


def test_tests_after_the_kept_round_are_not_its_scores(tmp_path: Path) -> None:
    run(scripted(0, 1, 0, rounds=1, keep="best", test="none"), out=tmp_path / "run")
    later = run(scripted(0, 1, 0, keep="best"), out=tmp_path / "run", resume=True)
    assert later.best["round"] == 1
    assert [record["accuracy"] is None for record in later.history] == [True, False, False]
    assert read_run(tmp_path / "run").tested is None


def test_the_round_in_which_patience_ends_is_tested() -> None:
    # It is what is shipped, though round 1 was better.
    result = run(scripted(0, 1, 1, 1, patience=2, test="best"))
    assert [record["accuracy"] is None for record in result.history] == [False, True, False]
    assert result.best["round"] == 3


def test_the_last_round_is_shipped_unless_told_otherwise() -> None:
    result = run(scripted(0, 1))
    assert result.best["round"] == 2
    assert result.tensors["bias"].tolist() == [0.0, 2.0]


def test_a_loss_is_better_when_it_is_lower() -> None:
    # Answering 0 the loss of round r is log(1 + e^-r) + r/3: 0.647, 0.794, ...
    result = run(scripted(0, 0, keep="best", score="loss"))
    assert validated(result, "loss") == sorted(validated(result, "loss"))
    assert validated(result, "kept") == [1, 1]


def test_patience_stops_the_run_and_says_why() -> None:
    result = run(scripted(1, 0, 1, 0, 0, 0, 0, keep="best", patience=2))
    assert len(result.history) == 4
    assert result.stopped == "no better accuracy in 2 validations since round 2"
    assert [record.get("stopped") for record in result.history[:-1]] == [None] * 3
    assert result.best["round"] == 2
    assert "stopped: no better accuracy" in repr(result)


def test_patience_counts_validations_not_rounds() -> None:
    result = run(scripted(0, 0, 0, 0, 0, 0, 0, 0, patience=2, eval_every=2))
    assert len(result.history) == 6
    assert result.best["round"] == 6  # nothing says that the best is to be kept


def test_a_run_that_gets_better_is_not_stopped() -> None:
    # With logits (r, 0) and answer 0 the loss grows; with ever smaller steps it would not.
    result = run(scripted(1, 1, 0, keep="best", patience=2))
    assert (len(result.history), result.stopped, result.best["round"]) == (3, "", 3)


def test_a_score_that_is_not_defined_is_said_and_keeps_nothing() -> None:
    # Of two classes none is few-shot.
    said: list[str] = []

    class Watch(Callback):
        def on_warning(self, message: str) -> None:
            said.append(message)

    result = run(scripted(0, 1, keep="best", score="few"), callbacks=[Watch()])
    assert said[0] == "round 1: validation gives no 'few', and the round cannot be kept"
    assert result.best["round"] == 2
    assert result.tensors["bias"].tolist() == [0.0, 2.0]


def test_the_test_set_chooses_nothing() -> None:
    # A test set with other labels, which prefers another round, changes its own scores only.
    chosen: dict[str, Any] = {"keep": "best", "patience": 2}
    ours = run(scripted(1, 0, 1, 1, 1, **chosen))
    theirs = run(scripted(1, 0, 1, 1, 1, y_test=(1, 1, 1, 0), **chosen))
    assert ours.digest == theirs.digest
    assert ours.best["round"] == theirs.best["round"] == 2
    assert len(ours.history) == len(theirs.history) == 4
    assert validated(ours, "accuracy") == validated(theirs, "accuracy")
    assert [r["accuracy"] for r in ours.history] != [r["accuracy"] for r in theirs.history]


# The same everywhere


class Odd(Serial):
    """Loses every answer about what is held out, from one client or from all."""

    def __init__(self, runtime: Runtime, clients: tuple[int, ...]) -> None:
        super().__init__(runtime)
        object.__setattr__(self, "clients", clients)

    def perform(self, jobs: Any, total: Any = None) -> list[Done]:
        return [
            self._lost(job, done) for job, done in zip(jobs, super().perform(jobs), strict=True)
        ]

    def _lost(self, job: Job, done: Done) -> Done:
        mine = job.task.action == "assess" and job.task.client in getattr(self, "clients", ())
        return Done(None, done.state, "lost") if mine else done


def test_who_does_not_answer_is_named_and_left_out() -> None:
    said: list[str] = []

    class Watch(Callback):
        def on_warning(self, message: str) -> None:
            said.append(message)

    result = tiny.run_with(scripted(0), lambda runtime: Odd(runtime, (1,)), [Watch()])
    assert said == ["after round 1: client 1 is left out: lost"]
    found = result.metrics["validation"]
    assert (found["samples"], found["clients"]) == (3, 1)
    assert result.metrics["dropped"] == []  # it was there when the round was trained


def test_a_round_that_nobody_validates_is_not_kept() -> None:
    chosen = scripted(0, 1, keep="best", patience=1)
    result = tiny.run_with(chosen, lambda runtime: Odd(runtime, (0, 1)))
    assert validated(result, "accuracy") == [None, None]
    assert (result.best["round"], result.stopped) == (2, "")


def plain(result: Any) -> list[dict[str, Any]]:
    return [{k: v for k, v in record.items() if k != "seconds"} for record in result.history]


def real(**fields: Any) -> Experiment:
    method: FedAvg[ModelState] = FedAvg(local=tiny.quick(momentum=0.9), buffers="local")
    given = {"validation": 0.4, "keep": "best", "rounds": 5, "patience": 3, **fields}
    return tiny.experiment(method, tiny.dropout_model, **given)


def test_two_workers_give_the_same_scores_and_model() -> None:
    alone, apart = run(real()), run(real(workers=2))
    assert plain(alone) == plain(apart)
    assert alone.digest == apart.digest


def test_validating_changes_nothing_but_the_data() -> None:
    # The same samples are held out, and nobody looks at them: the state is the same.
    with_look, without = run(real(keep="last", patience=0)), run(real(eval_every=5, patience=0))
    for name, tensor in with_look.state.model.items():
        assert torch.equal(tensor, without.state.model[name])


class Stop(Exception):
    """An interruption."""


class StopIn(Callback):
    """Stops a run after a round was saved, or before."""

    def __init__(self, round: int) -> None:
        self.round = round

    def on_round(self, record: Any) -> None:
        if record["round"] == self.round:
            raise Stop


@pytest.mark.parametrize("at", [2, 4])
@pytest.mark.parametrize("every", [1, 3])
def test_an_interrupted_run_ships_the_same_model(tmp_path: Path, at: int, every: int) -> None:
    chosen = scripted(1, 0, 1, 1, 1, 1, keep="best", patience=4, checkpoint_every=every)
    whole = run(chosen, out=tmp_path / "whole")
    with pytest.raises(Stop):
        run(chosen, out=tmp_path / "run", callbacks=[StopIn(at)])
    resumed = run(chosen, out=tmp_path / "run", resume=True)
    assert plain(resumed) == plain(whole)
    assert resumed.digest == whole.digest
    assert resumed.tensors["bias"].tolist() == [2.0, 0.0]
    model = "model.safetensors"
    assert (tmp_path / "run" / model).read_bytes() == (tmp_path / "whole" / model).read_bytes()


def test_a_finished_run_is_ended_again_from_its_checkpoint(tmp_path: Path) -> None:
    chosen = scripted(1, 0, 1, 1, 1, keep="best", patience=2, checkpoint_every=3)
    first = run(chosen, out=tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").unlink()
    again = run(chosen, out=tmp_path / "run", resume=True)
    assert again.digest == first.digest
    assert (len(again.history), again.stopped) == (4, first.stopped)


# Longer


def test_a_finished_run_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "run"
    whole = run(real(rounds=5, patience=0))
    run(real(rounds=2, patience=0), out=out)
    longer = run(real(rounds=5, patience=0), out=out, resume=True)
    assert plain(longer) == plain(whole)
    assert longer.digest == whole.digest
    assert "rounds = 5" in (out / "experiment.toml").read_text()
    with pytest.raises(FedtailError, match="has done 5 rounds: rounds = 4 is fewer"):
        run(real(rounds=4, patience=0), out=out, resume=True)


def test_a_run_ends_sooner_at_a_round_that_was_tested(tmp_path: Path) -> None:
    # Stopped in round 4, with a checkpoint of round 3. Every second round is tested.
    chosen = {"patience": 0, "eval_every": 2}
    with pytest.raises(Stop):
        run(real(**chosen, rounds=9), out=tmp_path / "run", callbacks=[StopIn(4)])
    with pytest.raises(FedtailError, match=r"round 3 of .* was not tested .* at least 4"):
        run(real(**chosen, rounds=3), out=tmp_path / "run", resume=True)
    sooner = run(real(**chosen, rounds=4), out=tmp_path / "run", resume=True)
    assert plain(sooner) == plain(run(real(**chosen, rounds=4)))


def test_a_run_that_was_out_of_patience_goes_on_with_more(tmp_path: Path) -> None:
    out = tmp_path / "run"
    script = (1, 0, 1, 1, 1, 1)
    short = run(scripted(*script, keep="best", patience=2), out=out)
    assert len(short.history) == 4
    again = run(scripted(*script, keep="best", patience=2, rounds=9), out=out, resume=True)
    assert (len(again.history), again.stopped) == (4, short.stopped)
    longer = run(scripted(*script, keep="best", patience=4), out=out, resume=True)
    assert (len(longer.history), longer.best["round"]) == (6, 2)


def test_a_kill_after_the_description_changed_leaves_a_run_to_go_on_with(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run(real(rounds=2, patience=0), out=out)
    with pytest.raises(Stop):
        run(real(rounds=5, patience=0), out=out, resume=True, callbacks=[StopIn(3)])
    assert not (out / "model.safetensors").exists()
    resumed = run(real(rounds=5, patience=0), out=out, resume=True)
    assert resumed.digest == run(real(rounds=5, patience=0)).digest


# What is refused, and what is said


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"keep": "best"}, "keep = 'best' needs samples that are held out of training"),
        ({"test": "best"}, "test = 'best' needs samples that are held out of training"),
        ({"patience": 3}, "patience = 3 needs samples that are held out of training"),
        ({"validation": 1.0}, "'validation.share' = 1.0 is refused"),
        ({"validation": {"share": 0.1, "by": "class"}}, "'validation.by' = 'class' is refused"),
        (
            {"validation": 0.1, "privacy": {"epsilon": 8.0}},
            "validation shows sums of counts of clients' samples",
        ),
        (
            {"data": {"name": "digits", "validation": 0.1}, "validation": 0.2},
            "give 'validation.share' or 'data.validation', not both",
        ),
    ],
)
def test_what_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(FedtailError) as caught:
        Experiment(**fields)
    assert str(caught.value).startswith(said)


def test_a_class_that_nobody_holds_out_is_said() -> None:
    # Of class 2 the tiny federation has eight samples, of which a share of 0.001 takes none.
    setting = prepare(tiny.experiment(validation=0.001))
    assert never_validated(setting) == [
        "no sample is held out of class 0, 1, 2: validation says nothing of it"
    ]
    assert never_validated(prepare(tiny.experiment())) == []
    assert never_validated(prepare(scripted(0))) == []


def test_a_client_cannot_count_more_than_it_has() -> None:
    # Client 1 says that all of 100 samples were right.
    said: list[str] = []

    class Watch(Callback):
        def on_warning(self, message: str) -> None:
            said.append(message)

    class Boasting(Serial):
        def perform(self, jobs: Any, total: Any = None) -> list[Done]:
            return [self._more(j, d) for j, d in zip(jobs, super().perform(jobs), strict=True)]

        def _more(self, job: Job, done: Done) -> Done:
            if job.task.action != "assess" or job.task.client != 1 or done.payload is None:
                return done
            counts = {k: copy.copy(t) for k, t in done.payload.tensors.items()}
            counts["validation/right"] = torch.tensor([100, 0])
            return replace(done, payload=Payload(counts, done.payload.scalars))

    result = tiny.run_with(scripted(0), lambda runtime: Boasting(runtime), [Watch()])
    assert said == [
        "after round 1: client 1 is left out: sent validation/right with numbers from 0 to 100, "
        "not 0 to 6"
    ]
    assert result.metrics["validation"]["clients"] == 1
