"""Worker processes by themselves: where cores are free and it is worth it, with the same bits."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import odd_methods
import pytest
import tiny
from torch import nn

from fedtail import FedAvg, Method, run
from fedtail.engines import Embedded, auto
from fedtail.engines.auto import Auto
from fedtail.engines.executor import Job
from fedtail.engines.runtime import Clock
from fedtail.errors import ClientFailed
from fedtail.metrics import Evaluation
from fedtail.processes import Hand
from fedtail.protocol import Payload, Task, grouped
from fedtail.setting import prepare

QUICK = {"local": tiny.quick()}


@pytest.fixture
def two_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have two cores free and anything worth it; who asks whether processes are ready waits."""
    monkeypatch.setattr(auto, "free_between", lambda before, after: 2)
    monkeypatch.setattr(auto, "WORTH", 0.0)
    monkeypatch.setattr(auto, "LOOK", 0.0)
    monkeypatch.setattr(auto, "TRIED", 1e9)
    ready = Hand.ready
    monkeypatch.setattr(Hand, "ready", lambda hand, wait=True: ready(hand))


@contextmanager
def engine(method: Method[Any], **fields: Any) -> Iterator[tuple[Embedded, Auto]]:
    made = Embedded(prepare(tiny.experiment(method, **fields)).runtime(), "auto")
    assert isinstance(made.executor, Auto)
    try:
        yield made, made.executor
    finally:
        made.close()


def ask(*clients: int) -> list[Task]:
    payload = Payload()
    return [Task(client, "ask", payload) for client in clients]


@pytest.mark.timeout(120)
def test_a_run_that_goes_over_to_workers_has_the_same_bits(
    two_free: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []
    performed = Auto.perform

    def perform(self: Auto, *args: Any) -> Any:
        done = performed(self, *args)
        used.append(self.workers)
        return done

    monkeypatch.setattr(Auto, "perform", perform)
    chosen = tiny.experiment(
        FedAvg(local=tiny.quick(momentum=0.9), buffers="local"), tiny.dropout_model, rounds=4
    )
    assert chosen.workers == "auto"
    found = run(chosen)
    assert used[0] == 0 and used[-1] == 2
    alone = run(chosen.but(workers=0))
    assert found.digest == alone.digest
    assert [{**r, "seconds": 0} for r in found.history] == [
        {**r, "seconds": 0} for r in alone.history
    ]


def test_a_short_run_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "free_between", lambda before, after: 64)
    monkeypatch.setattr(auto, "hire", None)
    run(tiny.experiment(FedAvg(**QUICK), rounds=2))


@pytest.mark.parametrize("free", [1, 2, 3])
def test_seconds_left_against_seconds_to_start(
    free: int, two_free: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two of four jobs took 2 s: 1 s each. In round 1 of 4 are left 16 - 2 = 14 jobs and 4 tests of
    # half a second, together 16 s. Two processes save half of it, three two thirds: 8 s, 10.67 s.
    hired: list[int] = []

    def hire(count: int, main: bool) -> list[Hand]:
        hired.append(count)
        return []

    monkeypatch.setattr(auto, "hire", hire)
    monkeypatch.setattr(auto, "free_between", lambda before, after: free)
    monkeypatch.setattr(auto, "WORTH", 1.0)
    saved = {1: 0.0, 2: 8.0, 3: 16 * 2 / 3}[free]
    with engine(odd_methods.Remembering()) as (_, executor):
        jobs = [Job(task, {}, Clock(1, 4)) for task in ask(0, 1, 2, 3)]
        for costs in (saved + 0.01, saved - 0.01):
            executor._here = auto.Times(2.0, 2)
            executor._test, executor._looked = 0.5, False
            monkeypatch.setattr(auto, "starting_costs", lambda costs=costs: costs)
            executor._look(jobs, 2)
            assert hired == ([free] if free > 1 and costs < saved else [])


@pytest.mark.timeout(120)
def test_what_a_client_half_raises_is_its_own_also_from_a_worker(two_free: None) -> None:
    with engine(odd_methods.Raising()) as (made, executor):
        made.perform(ask(0, 1), 1, 3)
        assert len(executor._hands) == 2
        with pytest.raises(ValueError, match=r"^out of luck") as caught:
            made.perform(ask(0, 1), 2, 3)
        assert executor.workers == 2
        assert not isinstance(caught.value, ClientFailed)
        assert any("client 1, action 'ask', round 2" in note for note in caught.value.__notes__)


@pytest.mark.timeout(120)
def test_a_model_is_tested_there_too(two_free: None) -> None:
    with engine(FedAvg(**QUICK)) as (made, executor):
        tensors = made.runtime.model.tensors()
        task = [Task(c, "train", Payload(grouped("model", tensors))) for c in range(3)]
        alone = made.evaluate(tensors)
        for number in (1, 2):
            made.perform(task, number, 3)
        assert executor.workers == 2
        found: Evaluation = made.evaluate(tensors)
        assert (found.confusion == alone.confusion).all()


@pytest.mark.timeout(120)
def test_workers_that_are_slower_are_given_back(
    two_free: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "TRIED", 0.0)
    for faster, expected in ((1e9, 2), (0.0, 0)):
        monkeypatch.setattr(auto, "FASTER", faster)
        with engine(odd_methods.Remembering()) as (made, executor):
            for number in (1, 2, 3):
                made.perform(ask(0, 1), number, 9)
            assert executor.workers == expected
            counted = made.perform(ask(0), 4, 9).found.each[0].payload.tensors["count"]
            assert counted.tolist() == [4.0]


def test_what_no_worker_can_be_sent_is_done_here(
    two_free: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Inner(nn.Linear):
        """Is found by nobody else."""

    def model() -> nn.Module:
        return nn.Sequential(nn.Flatten(), Inner(math.prod(tiny.IMAGE), tiny.CLASSES))

    monkeypatch.setattr(auto, "hire", None)
    run(tiny.experiment(FedAvg(**QUICK), model, rounds=3))


@pytest.mark.parametrize("reason", ["memory", "shared memory", "busy", "started for work itself"])
def test_no_worker_is_started_without_room_for_it(
    reason: str, two_free: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "hire", None)
    if reason == "memory":
        monkeypatch.setattr(auto, "free_memory", lambda: 1e6)
    elif reason == "shared memory":
        monkeypatch.setattr(auto, "sent_without_script", lambda runtime: 1 << 60)
        monkeypatch.setattr(auto, "free_memory", lambda: 1e30)
    elif reason == "busy":
        monkeypatch.setattr(auto, "free_between", lambda before, after: 1)
    else:
        monkeypatch.setattr(auto, "may_start", lambda: False)
    with engine(odd_methods.Remembering()) as (made, executor):
        for number in (1, 2):
            made.perform(ask(0, 1), number, 9)
        assert not executor._hands and not executor.workers


SCRIPT = """
import fedtail
from fedtail.engines import auto
from fedtail.processes import Hand

print("begun")
auto.free_between = lambda before, after: 2
auto.WORTH = auto.LOOK = 0.0
ready, used = Hand.ready, []
Hand.ready = lambda hand, wait=True: ready(hand)
perform = auto.Auto.perform
auto.Auto.perform = lambda self, *args: (used.append(self.workers), perform(self, *args))[1]
fedtail.run(fedtail.Experiment(rounds=3, together=0))
print("workers", max(used))
"""


@pytest.mark.timeout(120)
def test_a_script_that_is_not_prepared_for_processes_runs_once(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "begun\nworkers 2\n"
    assert "Traceback" not in done.stderr
