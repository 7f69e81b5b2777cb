"""Runs in which the server sees sums only: same models, other messages."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from summing import far, summed
from torch import nn

from fedtail import (
    CCVR,
    GBME,
    SLAC,
    Arrays,
    CReFF,
    Experiment,
    FedAvg,
    FedNova,
    FedtailError,
    GBMEp,
    Method,
    Privacy,
    RedGrape,
    RunStopped,
    Scaffold,
    run,
)
from fedtail.callbacks import Callback, Record
from fedtail.engines.executor import Done, Executor, Job, Serial
from fedtail.engines.runtime import Runtime
from fedtail.forms import Form
from fedtail.models import SplitModel
from fedtail.privacy.client_side import width
from fedtail.protocol import Payload
from fedtail.result import Result
from fedtail.testing.executors import Isolated, Spoiler, lost, run_with
from fedtail.totals import Sums
from fedtail.training import GlobalPrior, ProxyPrior

METHODS: dict[str, Method[Any]] = {
    "fedavg": FedAvg(local=tiny.quick()),
    "global counts": FedAvg(local=tiny.quick(), prior=GlobalPrior(), loss="balanced_softmax"),
    "proxy": FedAvg(local=tiny.quick(), prior=ProxyPrior(), loss="balanced_softmax"),
    "creff": CReFF(local=tiny.quick(), features=5, match_steps=5, head_epochs=5),
    "redgrape": RedGrape(local=tiny.quick(), per_class=2),
    "gbme-p": GBMEp(local=tiny.quick()),
    "ccvr": CCVR(local=tiny.quick(), samples=20),
    "scaffold": Scaffold(local=tiny.quick()),
    "slac": SLAC(local=tiny.quick()),
    "fednova": FedNova(local=tiny.quick()),
    "gbme": GBME(local=tiny.quick(), prior=GlobalPrior(), grouping="random", experts=2),
}


@pytest.mark.parametrize("name", METHODS)
def test_secure_equals_plain(name: str) -> None:
    experiment = tiny.experiment(METHODS[name], tiny.norm_model, rounds=2, workers=0)
    plain = run(experiment)
    found = run(experiment.but(secure=True))
    assert not any(record["dropped"] for record in found.history)
    assert far(found, plain) < 1e-6  # the last bit of a mean may be rounded otherwise
    for mine, theirs in zip(found.history, plain.history, strict=True):
        assert mine["clients"] == theirs["clients"]
        for key, value in theirs["method"].items():
            assert mine["method"][key] == pytest.approx(value, rel=1e-5, abs=1e-6)


SAID_NO = re.compile("was answered before|not here any more")
BOUND = {"name": "norm_bound", "bound": 0.05}


@pytest.mark.parametrize("name", ["fedavg", "creff", "redgrape", "scaffold", "fednova", "gbme"])
def test_clients_that_shorten_their_changes_are_a_servers_norm_bound(name: str) -> None:
    experiment = tiny.experiment(METHODS[name], tiny.norm_model, rounds=2, workers=0, robust=BOUND)
    here = run(experiment)
    found = run(experiment.but(secure=True))
    # Both in float64; a number of a secure sum is rounded to 2^-35, the mean to float32.
    assert far(found, here) < 1e-6
    assert far(found, run(experiment.but(robust="none"))) > 1e-3  # the bound does something


def test_a_bound_that_nobody_reaches_is_the_mean_of_clients_alike() -> None:
    wide = {"name": "norm_bound", "bound": 1e6}
    experiment = tiny.experiment(rounds=1, workers=0, secure=True)
    alike = run(experiment.but(robust=wide))
    assert far(alike, run(experiment.but(secure=False, robust=wide))) < 1e-6
    assert far(alike, run(experiment)) > 1e-3  # which weighs by samples


def test_worker_processes_shorten_the_same_changes() -> None:
    experiment = tiny.experiment(METHODS["creff"], rounds=2, secure=True, robust=BOUND)
    assert run(experiment.but(workers=1)).digest == run(experiment.but(workers=0)).digest


@pytest.mark.parametrize("name", ["creff", "redgrape", "gbme"])
def test_masks_change_no_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The same whole numbers without masks, and again with others.
    experiment = tiny.experiment(METHODS[name], tiny.norm_model, rounds=2, workers=0, secure=True)
    found = [run(experiment).digest for _ in range(2)]
    for place in ("member", "exchange"):
        monkeypatch.setattr(f"fedtail.privacy.secure.{place}.add_mask", lambda *_: None)
    assert {run(experiment).digest, *found} == {found[0]}


def test_bits_do_not_depend_on_who_does_the_work() -> None:
    experiment = tiny.experiment(METHODS["redgrape"], rounds=2, workers=0)
    assert summed(experiment, Shared).digest == run(experiment.but(secure=True)).digest


class Shared(Isolated):
    """Two copies of the runtime, which find what clients keep in one place, as workers do."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        for copy in self.runtimes:
            copy.client_side = pickle.loads(pickle.dumps(runtime.client_side))


@pytest.mark.slow
def test_bits_do_not_depend_on_workers() -> None:
    experiment = tiny.experiment(METHODS["creff"], rounds=2, secure=True)
    assert run(experiment.but(workers=2)).digest == run(experiment.but(workers=0)).digest


class Watched(Serial):
    """Keeps what passes, as a curious server could."""

    seen: list[tuple[str, Payload, Payload | None]]

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        object.__setattr__(self, "seen", [])

    def perform(self, jobs: Sequence[Job], total: Sums | None = None) -> list[Done]:
        done = list(super().perform(jobs))
        for job, one in zip(jobs, done, strict=True):
            self.seen.append((job.task.action, job.task.payload, one.payload))
        return done


def watched(experiment: Experiment) -> tuple[Result, list[tuple[str, Payload, Payload | None]]]:
    """Run, and return what the server saw."""
    executors: list[Watched] = []

    def executor(runtime: Runtime) -> Executor:
        executors.append(Watched(runtime))
        return executors[0]

    return summed(experiment, executor), executors[0].seen


def test_the_server_sees_no_number_of_one_client() -> None:
    _, seen = watched(tiny.experiment(METHODS["redgrape"], rounds=1))
    answers = [answer for action, _, answer in seen if action == "train"]
    assert len(answers) == 4
    for answer in answers:
        assert answer is not None
        # How many samples, steps and classes a client has is not there.
        assert set(answer.tensors) == {"masked/update"} and answer.scalars == {}
        # Uniform numbers of 64 bits: of a hundred and more, about half are negative.
        (masked,) = answer.tensors.values()
        assert 0.3 < float((masked < 0).double().mean()) < 0.7
    assert sum(action == "secure_open" for action, _, _ in seen) == 4


def test_bytes_are_those_of_all_steps() -> None:
    found, seen = watched(tiny.experiment(rounds=1))
    (record,) = found.history
    assert record["bytes_down"] == sum(sent.nbytes for _, sent, _ in seen)
    assert record["bytes_up"] == sum(got.nbytes for *_, got in seen if got is not None)
    up = {
        action: {got.nbytes for name, _, got in seen if name == action and got is not None}
        for action in ("secure_keys", "secure_shares", "secure_agree", "secure_open")
    }
    # Three keys and a signature; three boxes of 82, four pairs of digests and one; 64; four shares.
    assert up["secure_keys"] == {3 * 32 + 64}
    assert up["secure_shares"] == {3 * 82 + 4 * 64 + 32}
    assert up["secure_agree"] == {64}
    assert up["secure_open"] == {4 * 33}


def test_nothing_is_left_of_the_clients_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedtail.privacy.plan.IN_MEMORY", tmp_path / "memory")
    (tmp_path / "memory").mkdir()

    class Looking(Callback):
        def on_round(self, record: Record) -> None:
            (desk,) = (tmp_path / "memory").iterdir()
            assert list(desk.iterdir()) == []

    run(tiny.experiment(secure=True, workers=0), callbacks=[Looking()])
    assert list((tmp_path / "memory").iterdir()) == []


def test_random_numbers_do_not_depend_on_secure_sums() -> None:
    method = TwiceTrained(local=tiny.quick())
    experiment = tiny.experiment(method, workers=0)
    assert far(summed(experiment), run(experiment)) < 1e-6


class TwiceTrained(FedAvg[Any]):
    """Trains each cohort twice in a round."""

    def round(self, s: Any, server: Any) -> Any:
        s = yield from super().round(s, server)
        return (yield from super().round(s, server))


STEPS = ["secure_keys", "secure_shares", "train", "secure_agree", "secure_open"]


def losing(*clients: int, action: str) -> Callable[[Runtime], Executor]:
    """Return an executor that loses some clients' answers to one action."""

    def which(job: Job) -> bool:
        return job.task.action == action and job.task.client in clients

    return partial(Spoiler, spoil=lost, which=which)


@pytest.mark.parametrize("action", STEPS)
def test_a_client_that_is_lost_in_a_step(action: str, caplog: pytest.LogCaptureFixture) -> None:
    # Six are asked, and four must stay to the end.
    experiment = tiny.experiment(per_round=6, rounds=1, workers=0)
    found = summed(experiment, losing(1, 4, action=action))
    (record,) = found.history
    if action in STEPS[:3]:
        assert record["clients"] == [0, 2, 3, 5]
        assert [d["client"] for d in record["dropped"]] == [1, 4]
        some = experiment.but(on_client_error="drop")
        assert far(found, run_with(some, losing(1, 4, action="train"))) < 1e-6
    else:
        assert record["clients"] == [0, 1, 2, 3, 4, 5] and record["dropped"] == []
        assert far(found, run(experiment)) < 1e-6
        assert f"client 4 lost in step '{action}' of the secure sum: lost" in caplog.text


@pytest.mark.parametrize("action", STEPS)
def test_below_the_threshold_there_is_no_sum(action: str) -> None:
    said = "no valid update in 1 round.*3 members .*, fewer than the 4 that a sum needs"
    experiment = tiny.experiment(per_round=6, rounds=1, workers=0)
    with pytest.raises(RunStopped, match=said):
        summed(experiment, losing(3, 4, 5, action=action))


def test_a_lower_threshold_survives_more() -> None:
    experiment = tiny.experiment(per_round=6, rounds=1, workers=0, secure=True)
    chosen = experiment.but(secure_threshold=0.51)  # four of six; of five three
    with pytest.raises(RunStopped, match="3 members delivered, fewer than the 4"):
        summed(chosen, losing(3, 4, 5, action="train"))
    smaller = chosen.but(per_round=5)
    (record,) = summed(smaller, losing(0, 1, action="train")).history
    assert len(record["clients"]) >= 3


def test_a_wrong_share_is_named(caplog: pytest.LogCaptureFixture) -> None:
    def damaged(done: Done) -> Done:
        assert done.payload is not None
        return replace(done, payload=Payload({n: t ^ 1 for n, t in done.payload.tensors.items()}))

    def which(job: Job) -> bool:
        return job.task.action == "secure_open" and job.task.client == 2

    experiment = tiny.experiment(per_round=6, rounds=1, workers=0)
    found = summed(experiment, partial(Spoiler, spoil=damaged, which=which))
    assert found.metrics["clients"] == [0, 1, 2, 3, 4, 5]
    assert far(found, run(experiment)) < 1e-6
    assert "round 1: client 2 sent a wrong share" in caplog.text


def cut(done: Done) -> Done:
    assert done.payload is not None
    tensors = {name: t[:-1] for name, t in done.payload.tensors.items()}
    return replace(done, payload=Payload(tensors))


@pytest.mark.parametrize("action", STEPS)
def test_an_answer_that_looks_otherwise_is_lost(action: str) -> None:
    def which(job: Job) -> bool:
        return job.task.action == action and job.task.client == 0

    experiment = tiny.experiment(per_round=6, rounds=1, workers=0)
    (record,) = summed(experiment, partial(Spoiler, spoil=cut, which=which)).history
    assert {1, 2, 3, 4, 5} <= set(record["clients"])
    assert [d["client"] for d in record["dropped"]] == ([0] if action in STEPS[:3] else [])


def test_a_task_that_is_done_twice_has_one_answer() -> None:
    # As where a worker process dies after its answer was masked, and another does the task again.
    class Twice(Serial):
        def perform(self, jobs: Sequence[Job], total: Sums | None = None) -> list[Done]:
            first = list(super().perform(jobs))
            again = list(super().perform(jobs))
            assert all(SAID_NO.search(done.reason) for done in again)
            return [
                b if job.task.client == 0 else a
                for job, a, b in zip(jobs, first, again, strict=True)
            ]

    experiment = tiny.experiment(per_round=6, rounds=1, workers=0)
    (record,) = summed(experiment, Twice).history
    assert record["clients"] == [1, 2, 3, 4, 5]


def test_a_number_that_there_is_no_room_for_is_not_sent() -> None:
    # 2^28 / 4 is 67 million; a weight times 4 samples is more.
    class Loud(FedAvg[Any]):
        def reply(self, run: Any) -> Payload:
            sent = super().reply(run)
            loud = {n: torch.full_like(t, 3e7) for n, t in sent.tensors.items()}
            return replace(sent, tensors=loud if run.client.id == 0 else sent.tensors)

    method: Method[Any] = Loud(local=tiny.quick())
    experiment = tiny.experiment(method, per_round=6, rounds=1, workers=0)
    (record,) = summed(experiment).history
    (dropped,) = record["dropped"]
    assert dropped["client"] == 0
    assert (
        "above 4.47392e+07, which is what a secure sum of 6 clients has room for"
        in dropped["reason"]
    )


def test_more_than_a_hundred_clients_are_several_sums() -> None:
    # 102 clients of one sample: two sums of 51, and one mean over all.
    x, y = torch.randn(102, 3, generator=torch.Generator().manual_seed(0)), torch.arange(102) % 2
    data = Arrays(x, y, x, y, classes=("a", "b"), normalisation="none")
    experiment = Experiment(
        data=data, model=nn.Linear(3, 2), clients=102, partition="iid", rounds=1, workers=0
    )
    plain, found = run(experiment), run(experiment.but(secure=True))
    assert len(found.metrics["clients"]) == 102
    assert far(found, plain) < 1e-6


def test_all_groups_share_the_room_of_a_sum() -> None:
    # 102 clients with 4 million each are 408 million, and there is room for 268: in groups of 51
    # each would have fitted, and the sum of both would have come out below zero.
    class Loud(FedAvg[Any]):
        def reply(self, run: Any) -> Payload:
            sent = super().reply(run)
            return replace(sent, tensors={n: t + 4e6 for n, t in sent.tensors.items()})

    x, y = torch.randn(102, 3, generator=torch.Generator().manual_seed(0)), torch.arange(102) % 2
    data = Arrays(x, y, x, y, classes=("a", "b"), normalisation="none")
    method: Method[Any] = Loud(local=tiny.quick())
    fields: dict[str, Any] = {"model": nn.Linear(3, 2), "clients": 102, "partition": "iid"}
    experiment = Experiment(data=data, method=method, rounds=1, workers=0, secure=True, **fields)
    with pytest.raises(RunStopped, match="a secure sum of 102 clients has room for"):
        run(experiment)


def test_clipped_updates_of_many_clients_need_more_bits() -> None:
    # 2^21 steps of the grid times 1,000 are below 2^31; times 1,100 they are not.
    private = Privacy(epsilon=8.0)
    assert [width(private, n) for n in (1000, 1100)] == [32, 64]
    assert width(Privacy(), 10) == width(Privacy(epsilon=8.0, model="local"), 10) == 64


def test_a_client_that_sends_nan_is_left_out() -> None:
    method: FedAvg[Any] = FedAvg(local=tiny.quick(lr=1e30, epochs=5))
    with pytest.raises(RunStopped, match="sent NaN or infinity in model/"):
        summed(tiny.experiment(method, rounds=1))


class Chatty(FedAvg[Any]):
    """Sends more than it declares."""

    def reply(self, run: Any) -> Payload:
        sent = super().reply(run)
        return Payload({**sent.tensors, "extra/w": torch.ones(1)}, sent.scalars)


def test_what_a_method_does_not_declare_does_not_leave() -> None:
    with pytest.raises(RunStopped, match="sent 'extra/w', which is not declared"):
        summed(tiny.experiment(Chatty(local=tiny.quick()), rounds=1))


class Discreet(FedAvg[Any]):
    """Reads single updates, and says so in its form alone."""

    def train_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        return super().train_form(task, model, classes).singly("it looks at each")


def test_a_form_of_single_updates_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(FedtailError, match="cannot be protected: it looks at each"):
        summed(tiny.experiment(Discreet(local=tiny.quick())))


def test_a_round_of_one_client_is_refused() -> None:
    with pytest.raises(FedtailError, match="a round of one client cannot be summed securely"):
        tiny.experiment(per_round=1, secure=True)


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (FedAvg(buffers="first"), "takes the statistics of one client"),
        (GBME(), "each client's own index; gbme-p sends it with noise"),
        (GBME(grouping="label", prior=GlobalPrior()), "each client's own class counts"),
        (Method.model_validate("climb"), "weighs clients by their own losses"),
    ],
)
def test_a_refusal_says_why(method: Method[Any], reason: str) -> None:
    with pytest.raises(FedtailError, match=reason):
        tiny.experiment(method, secure=True)


def test_a_secure_run_resumes(tmp_path: Path) -> None:
    experiment = tiny.experiment(secure=True)
    whole = run(experiment, out=tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").unlink()
    again = run(experiment, out=tmp_path / "run", resume=True)
    assert again.digest == whole.digest


def test_what_is_held_out_is_counted_in_secure_sums() -> None:
    # Counts are whole numbers; no sample lies so close to a border that a last bit moves it.
    experiment = tiny.experiment(rounds=2, validation=0.5, keep="best")
    plain = run(experiment)
    found = run(experiment.but(secure=True))
    for mine, theirs in zip(found.history, plain.history, strict=True):
        ours, other = mine["validation"], theirs["validation"]
        assert (ours["per_class"], ours["samples"]) == (other["per_class"], other["samples"])
        assert ours["loss"] == pytest.approx(other["loss"], abs=1e-5)
        assert ours["bytes_up"] > other["bytes_up"]
