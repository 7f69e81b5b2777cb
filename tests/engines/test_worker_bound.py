"""No more workers than there are clients or cores, said in one sentence; the bits stay."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest
import tiny

from fedtail import run
from fedtail.cores import usable_cores
from fedtail.engines.workers import allowed_workers


@pytest.fixture
def one_core() -> Iterator[None]:
    """Let this process run on one core only."""
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system does not bind processes to cores")
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


def test_cores_are_those_that_this_process_may_use(one_core: None) -> None:
    assert usable_cores() == 1


@pytest.mark.parametrize(
    ("workers", "clients", "used"), [(0, 8, 0), (1, 8, 1), (2, 8, 2), (64, 8, 2), (2, 1, 1)]
)
def test_workers_are_bounded(one_core: None, workers: int, clients: int, used: int) -> None:
    # On one core two are still allowed, so that a pool of two is one on every machine.
    found, remarks = allowed_workers(workers, clients)
    assert found == used
    expected = (
        f"workers = {workers} is more than can be of use: the run uses {used} "
        f"(clients in a round: {clients}, cores: 1)"
    )
    assert remarks == ([expected] if used < workers else [])


def test_the_bound_is_logged_and_changes_no_bits(caplog: pytest.LogCaptureFixture) -> None:
    experiment = tiny.experiment(rounds=1, per_round=2)
    with caplog.at_level(logging.WARNING, logger="fedtail"):
        found = run(experiment.but(workers=64))
    said = "workers = 64 is more than can be of use: the run uses 2 (clients in a round: 2, cores: "
    about_workers = [message for message in caplog.messages if "workers" in message]
    assert [message.startswith(said) for message in about_workers] == [True]
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="fedtail"):
        assert found.digest == run(experiment).digest
    assert not any("workers" in message for message in caplog.messages)
