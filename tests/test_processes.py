"""Processes that are kept: the same one again, unless what surrounds it or its code has changed."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info
from torch import nn

from fedtail import processes
from fedtail.engines.runtime import numerics
from fedtail.processes import Hand, dismiss, hire, keep, may_start, sent_without_script


@pytest.fixture(autouse=True)
def nobody_kept() -> Iterator[None]:
    """Begin and end without any process."""
    dismiss(processes._kept)
    processes._kept.clear()
    yield
    dismiss(processes._kept)
    processes._kept.clear()


def tell(pipe: Connection, what: str) -> None:
    """Answer one question from inside a process."""
    answers: dict[str, Any] = {"pid": os.getpid, "may_start": may_start, "threads": look_inside}
    pipe.send(answers[what]() if what in answers else __import__(what).VALUE)


def look_inside() -> dict[str, Any]:
    """Compute what uses threads, and return how many there are."""
    with numerics(1):
        x = torch.randn(64, 8, 32, 32)
        loss = nn.Conv2d(8, 16, 3)(x).square().mean()
        torch.autograd.backward(loss)
        torch.randn(600, 600) @ torch.randn(600, 600)
        np.ones((600, 600)) @ np.ones((600, 600))
        pools = {info["prefix"]: info["num_threads"] for info in threadpool_info()}
        return {
            "torch": torch.get_num_threads(),
            "between operators": torch.get_num_interop_threads(),
            "pools": pools,
            "running": len(list(Path("/proc/self/task").iterdir())),
        }


def asked(hand: Hand, what: str) -> Any:
    hand.ready()
    hand.begin(tell, what)
    return hand.pipe.recv()


@pytest.mark.timeout(120)
def test_a_process_has_one_thread_in_every_library() -> None:
    before = dict(os.environ)
    (hand,) = hire(1)
    assert dict(os.environ) == before
    found = asked(hand, "threads")
    keep([hand])
    assert found["torch"] == found["between operators"] == 1
    assert found["pools"] and set(found["pools"].values()) == {1}
    # The main one; what torch shares tensors with may have one of its own, asleep.
    assert found["running"] <= 2


@pytest.mark.timeout(120)
def test_kept_processes_are_used_again_where_nothing_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "module_of_a_user.py"
    module.write_text("VALUE = 1")
    (hand,) = hire(1)
    assert asked(hand, "may_start") is False
    first, took = asked(hand, "pid"), hand.seconds
    assert asked(hand, "module_of_a_user") == 1
    keep([hand])
    (again,) = hire(1)
    assert asked(again, "pid") == first
    assert again.seconds == took

    # Its code is older than the file.
    keep([again])
    module.write_text("VALUE = 22")
    (other,) = hire(1)
    assert asked(other, "pid") != first
    assert asked(other, "module_of_a_user") == 22
    assert not again.process.is_alive()

    # Another working directory, and another environment.
    keep([other])
    monkeypatch.chdir(tmp_path)
    (moved,) = hire(1)
    assert asked(moved, "pid") not in (first, other.process.pid)
    keep([moved])
    monkeypatch.setenv("SOMETHING", "else")
    (last,) = hire(1)
    assert last.process.pid != moved.process.pid
    dismiss([last])


@pytest.mark.timeout(120)
def test_a_kept_process_that_died_is_replaced_and_ctrl_c_is_left_to_who_started_it() -> None:
    (hand,) = hire(1)
    hand.ready()
    assert hand.process.pid is not None
    os.kill(hand.process.pid, signal.SIGINT)
    assert asked(hand, "pid") == hand.process.pid
    keep([hand])
    os.kill(hand.process.pid, signal.SIGKILL)
    (other,) = hire(1)
    assert asked(other, "pid") != hand.process.pid
    # One that is still starting is not kept.
    new = hire(2)
    keep(new)
    assert processes._kept == []
    assert not any(hand.process.is_alive() for hand in new)
    # Who has nothing to say any more is not there to be asked.
    other.pipe.close()
    until = time.monotonic() + 30
    while other.process.is_alive() and time.monotonic() < until:
        time.sleep(0.05)
    assert other.process.exitcode == 0


class OfTheScript:
    """A class that only the main script would know."""


def test_what_belongs_to_the_main_script_is_not_sent() -> None:
    big = torch.zeros(250)
    assert sent_without_script({"a": big, "b": [big, np.zeros(3)], "c": "text"}) == 1000 + 24
    assert sent_without_script(nn.Linear(3, 2)) == 4 * (6 + 2)
    assert sent_without_script(lambda: 0) is None
    assert sent_without_script(OfTheScript()) == 0
    OfTheScript.__module__ = "__main__"
    sys.modules["__main__"].OfTheScript = OfTheScript  # type: ignore[attr-defined]
    try:
        assert sent_without_script([OfTheScript()]) is None
    finally:
        del sys.modules["__main__"].OfTheScript
        OfTheScript.__module__ = __name__
