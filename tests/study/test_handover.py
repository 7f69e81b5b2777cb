"""Runs of a study that go side by side by themselves: when it is worth it, with the same bits."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import pytest
import tiny
from torch import nn

from fedtail import Experiment, FedAvg, compare, processes
from fedtail.callbacks import read_records
from fedtail.processes import Hand
from fedtail.study import handover, perform
from fedtail.study.jobs import _next
from fedtail.study.plan import Planned

CHOICES = {"local.lr": [0.1, 0.5]}


@pytest.fixture
def two_free(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have two cores free and anything worth it; return how many processes were asked for."""
    monkeypatch.setattr(handover, "free_between", lambda before, after: 2)
    monkeypatch.setattr(handover, "WORTH", 0.0)
    ready, hire, hired = Hand.ready, processes.hire, []
    monkeypatch.setattr(Hand, "ready", lambda hand, wait=True: ready(hand))

    def counted(count: int, main: bool) -> list[Hand]:
        hired.append(count)
        return hire(count, main)

    monkeypatch.setattr(handover, "hire", counted)
    return hired


def chosen(**fields: Any) -> Experiment:
    return tiny.experiment(FedAvg(local=tiny.quick()), rounds=3, **fields)


def models(folder: Path) -> dict[str, bytes]:
    return {p.parent.name: p.read_bytes() for p in folder.glob("*/model.safetensors")}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("every", [2, 5])
def test_what_is_begun_here_and_ended_there_is_the_same(
    every: int,
    two_free: list[int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    # The first run is left at its checkpoint: after round 2 of 3, or, without one, when it is over.
    base = chosen(checkpoint_every=every)
    alone = compare(base, CHOICES, seeds=2, out=tmp_path / "alone", jobs=1)
    before = len(caplog.messages)
    found = compare(base, CHOICES, seeds=2, out=tmp_path / "auto", progress=True)
    assert two_free == [2]
    assert models(tmp_path / "auto") == models(tmp_path / "alone")
    assert len(models(tmp_path / "auto")) == 4
    for folder in (tmp_path / "auto").glob("*/"):
        assert [r["round"] for r in read_records(folder / "metrics.jsonl")] == [1, 2, 3]
    assert found.failures == alone.failures == {}
    said = capsys.readouterr().out
    assert said.count("2 runs at a time from here, each on a core of its own\n") == 1
    assert "run 4 of 4: " in said and "run 5" not in said
    assert not [m for m in caplog.messages[before:] if "checkpoint" in m]
    # They are there for the next study.
    assert len(processes._kept) == 2


def test_short_studies_and_those_with_workers_start_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "free_between", lambda before, after: 64)
    monkeypatch.setattr(handover, "hire", None)
    compare(chosen(), CHOICES, out=tmp_path / "short")
    monkeypatch.setattr(handover, "WORTH", 0.0)
    monkeypatch.setattr(perform, "Handover", None)
    compare(chosen(workers=1), CHOICES, out=tmp_path / "workers")
    compare(chosen(), out=tmp_path / "one")


@pytest.mark.parametrize("reason", ["script", "memory", "busy", "threads", "started for work"])
def test_nothing_is_started_where_it_cannot_help(
    reason: str, two_free: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Local(nn.Linear):
        """Cannot be imported by another process."""

    base = chosen()
    if reason == "script":
        base = chosen(model=nn.Sequential(nn.Flatten(), Local(math.prod(tiny.IMAGE), tiny.CLASSES)))
    elif reason == "threads":
        base = chosen(threads=2)
    elif reason == "memory":
        monkeypatch.setattr(handover, "free_memory", lambda: 1e6)
    elif reason == "busy":
        monkeypatch.setattr(handover, "free_between", lambda before, after: 1)
    else:
        monkeypatch.setattr(handover, "may_start", lambda: False)
    study = compare(base, CHOICES)
    assert study.failures == {}
    assert two_free == []


def test_long_runs_are_begun_before_short_ones() -> None:
    def planned(label: str, seed: int) -> Planned:
        return Planned(label, seed, chosen(), Path(f"{label}-{seed}"))

    waiting = [planned(label, seed) for label in "abc" for seed in (0, 1)]
    order = []
    took: dict[str, float] = {}
    while waiting:
        first = _next(waiting, took)
        order.append(f"{first.label}{first.seed}")
        if len(order) == 3:
            took = {"a": 1.0, "b": 9.0}
    # Nobody knows how long c takes, so it comes first; then b, which takes longest.
    assert order == ["a0", "a1", "b0", "c0", "c1", "b1"]


@pytest.mark.timeout(120)
def test_a_process_that_dies_while_it_starts_leaves_the_runs_here(
    two_free: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def dead(hand: Hand, wait: bool = True) -> bool:
        hand.process.kill()
        raise EOFError

    monkeypatch.setattr(Hand, "ready", dead)
    with caplog.at_level(logging.WARNING):
        study = compare(chosen(), CHOICES)
    assert study.failures == {}
    assert two_free == [2]
