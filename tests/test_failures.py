"""What fails stops the run with its reason, and nothing is shipped that was not learned."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from fedtail import Callback, FedAvg, FedtailError, Payload, RunStopped, run
from fedtail.callbacks import Progress, read_records
from fedtail.engines.executor import Done, Job, Serial
from fedtail.errors import is_wrong_input
from fedtail.exchange import EMPTY_ROUNDS
from fedtail.folder import RunFolder
from fedtail.forms import Form, Like
from fedtail.methods import ModelState, action
from fedtail.models import SplitModel
from fedtail.protocol import Client, Exchange, Server, Task
from fedtail.reduce import Reduced
from fedtail.totals import Sums

QUICK = {"local": tiny.quick()}


class ClientTypo(FedAvg[ModelState]):
    """Some clients fail in round 2."""

    failing: tuple[int, ...] = (0, 1, 2, 3, 4, 5)

    def prepare(self, run: Any) -> Any:
        if run.client.round == 2 and run.client.id in self.failing:
            return run.client.state["no such key"]
        return None


class ServerTypo(FedAvg[ModelState]):
    """The server half fails in round 2."""

    def aggregate(self, s: ModelState, found: Reduced, server: Server) -> ModelState:
        if server.round == 2:
            Path("no such file").read_bytes()
        return super().aggregate(s, found, server)


class Exhausted(FedAvg[ModelState]):
    """The client half runs out of something, as `next` says it."""

    def prepare(self, run: Any) -> Any:
        return next(iter(()))


class Silent(FedAvg[ModelState]):
    """The client half forgets to answer."""

    @action
    def train(self, payload: Payload, client: Client) -> Payload:
        super().train(payload, client)
        return None  # type: ignore[return-value]


def stopped(method: FedAvg[ModelState], out: Path, **fields: Any) -> BaseException:
    with pytest.raises(Exception) as caught:
        run(tiny.experiment(method, **fields), out=out)
    assert not RunFolder(out).finished
    return caught.value


def test_what_a_client_half_raises_is_raised(tmp_path: Path) -> None:
    error = stopped(ClientTypo(**QUICK), tmp_path / "run")
    assert isinstance(error, KeyError)
    assert traceback.extract_tb(error.__traceback__)[-1].filename == __file__
    (note,) = error.__notes__
    assert note.startswith("raised by the method: client ")
    assert note.endswith(", action 'train', round 2")
    # The checkpoint of round 1 stands: what is mended goes on.
    resumed = run(tiny.experiment(FedAvg(**QUICK)), out=tmp_path / "other")
    mended = tiny.experiment(ClientTypo(failing=(), **QUICK))
    with pytest.raises(FedtailError, match="another 'method'"):
        run(mended, out=tmp_path / "run", resume=True)
    assert len(read_records(RunFolder(tmp_path / "run").metrics)) == 1
    assert len(resumed.history) == 3


def test_what_a_server_half_raises_is_raised_and_no_wrong_input(tmp_path: Path) -> None:
    error = stopped(ServerTypo(**QUICK), tmp_path / "run")
    assert isinstance(error, FileNotFoundError)
    assert error.__notes__ == ["raised by the method: server half, round 2"]
    assert not is_wrong_input(error)
    assert is_wrong_input(FileNotFoundError("of the user"))


@pytest.mark.parametrize(
    ("method", "expected", "said"),
    [
        # A generator takes StopIteration for its end: the round would go on without a state.
        (Exhausted(**QUICK), RuntimeError, "client 0, action 'train'"),
        (Silent(**QUICK), TypeError, "'train' of '.*' returns NoneType, no Payload"),
    ],
)
def test_no_failure_looks_like_an_answer(
    method: FedAvg[ModelState], expected: type[Exception], said: str
) -> None:
    with pytest.raises(expected, match=said):
        run(tiny.experiment(method))


def test_clients_that_fail_can_be_dropped() -> None:
    chosen = tiny.experiment(ClientTypo(failing=(0, 1), **QUICK), per_round=6)
    with pytest.raises(KeyError):
        run(chosen)
    first, second, third = run(chosen.but(on_client_error="drop")).history
    assert (first["dropped"], third["dropped"]) == ([], [])
    assert [d["client"] for d in second["dropped"]] == [0, 1]
    assert second["dropped"][0]["reason"].startswith("KeyError: 'no such key' (test_failures.py, ")
    assert second["clients"] == [2, 3, 4, 5]


def test_if_all_of_them_fail_dropping_does_not_help(tmp_path: Path) -> None:
    error = stopped(ClientTypo(**QUICK), tmp_path, per_round=6, on_client_error="drop")
    assert isinstance(error, RunStopped)
    assert str(error).startswith(
        "round 2: every client failed, the first, client 0: KeyError: 'no such key' (test_failures"
    )


class Spoiled(Serial):
    """Hands that lose all answers of some rounds."""

    rounds: tuple[int, ...] = ()
    action: str = "train"

    def perform(self, jobs: Sequence[Job], total: Sums | None = None) -> list[Done]:
        done = list(super().perform(jobs))
        return [
            Done(None, job.state, "lost")
            if job.clock.round in self.rounds and job.task.action == self.action
            else one
            for job, one in zip(jobs, done, strict=True)
        ]


def losing(*numbers: int, name: str = "train") -> Callable[..., Spoiled]:
    return type("Losing", (Spoiled,), {"rounds": numbers, "action": name})


def test_three_empty_rounds_in_a_row_stop_the_run() -> None:
    assert EMPTY_ROUNDS == 3
    chosen = tiny.experiment(rounds=7)
    result = tiny.run_with(chosen, losing(1, 2, 4, 5, 7))
    assert [bool(r["clients"]) for r in result.history] == [0, 0, 1, 0, 0, 1, 0]
    said = r"no valid update in 3 rounds, up to round 5 \(the first, client \d: lost\)"
    with pytest.raises(RunStopped, match=said):
        tiny.run_with(chosen, losing(3, 4, 5))


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_short_run_without_any_update_ships_nothing(rounds: int) -> None:
    with pytest.raises(RunStopped, match=f"no valid update in {rounds} round"):
        tiny.run_with(tiny.experiment(rounds=rounds), losing(1, 2))


class TwoExchanges(FedAvg[ModelState]):
    """Asks before it trains."""

    def round(self, s: ModelState, server: Server) -> Exchange[ModelState]:
        yield [Task(client, "greet", Payload()) for client in server.cohort()]
        return (yield from super().round(s, server))

    @action
    def greet(self, payload: Payload, client: Client) -> Payload:
        return Payload({"x": torch.ones(1)})

    def greet_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        return Form({"x": Like((1,))})


def test_who_only_answered_the_first_question_has_updated_nothing() -> None:
    chosen = tiny.experiment(TwoExchanges(**QUICK), rounds=4)
    (first, *_) = tiny.run_with(chosen, losing(1)).history
    assert first["clients"] == []
    with pytest.raises(RunStopped, match="up to round 3"):
        tiny.run_with(chosen, losing(1, 2, 3))


class Diverging(FedAvg[ModelState]):
    """From a round on, every update is NaN."""

    since: int = 2

    def reply(self, run: Any) -> Payload:
        sent = super().reply(run)
        bad = torch.nan if run.client.round >= self.since else 1.0
        return Payload({n: t * bad for n, t in sent.tensors.items()}, sent.scalars)


def test_a_resumed_run_does_not_forget_its_empty_rounds(tmp_path: Path) -> None:
    # Rounds 2 and 3 are empty, round 4 stops the run and is not recorded, whenever it is tried.
    chosen = tiny.experiment(Diverging(**QUICK), rounds=9)
    for resume in (False, True, True):
        with pytest.raises(RunStopped, match="no valid update in 3 rounds, up to round 4 "):
            run(chosen, out=tmp_path / "run", resume=resume)
        assert [r["round"] for r in read_records(RunFolder(tmp_path / "run").metrics)] == [1, 2, 3]
    assert not RunFolder(tmp_path / "run").finished


def test_min_clients_of_one_stops_at_the_first_empty_round() -> None:
    tiny.run_with(tiny.experiment(), losing(2))
    with pytest.raises(RunStopped, match="round 2 has 0 valid updates, fewer than min_clients = 1"):
        tiny.run_with(tiny.experiment(min_clients=1), losing(2))


def test_what_nobody_listens_to_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    tiny.run_with(tiny.experiment(rounds=2), losing(2))
    assert {record.name for record in caplog.records} == {"fedtail"}
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    told = caplog.messages
    assert told[-1] == "round 2: no valid update, the model stays as it was"
    assert len(told) == len(set(told)) == 5  # four clients and the round, each once


class Watch(Callback):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def on_warning(self, message: str) -> None:
        self.warnings.append(message)


def test_without_handlers_warnings_are_on_standard_error_and_with_progress_only_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Python prints what no handler takes; pytest's own handlers are put aside.
    monkeypatch.setattr(logging.getLogger("fedtail"), "propagate", False)
    monkeypatch.setattr(logging.getLogger("fedtail"), "handlers", [])
    watch = Watch()
    tiny.run_with(tiny.experiment(rounds=2), losing(2), [watch])
    assert capsys.readouterr().err.splitlines() == watch.warnings

    progress = Progress()
    tiny.run_with(tiny.experiment(rounds=2), losing(2), [progress, watch])
    logging.getLogger("fedtail").warning("a worker was started again")
    progress.close()
    printed = capsys.readouterr()
    assert printed.err == ""
    for message in {*watch.warnings, "a worker was started again"}:
        assert printed.out.count(f"warning: {message}\n") == 1
    assert logging.getLogger("fedtail").handlers == []
