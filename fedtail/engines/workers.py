"""How many worker processes are of use."""

from __future__ import annotations

import os

FEWEST_WORKERS = 2
"""Two workers are allowed on one core too: what is tried with a pool is then one everywhere."""


def usable_cores() -> int:
    """Return on how many cores this process may run, which can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def allowed_workers(workers: int, clients: int) -> tuple[int, list[str]]:
    """Return how many workers to start, and a sentence if these are fewer than asked for.

    Parameters
    ----------
    workers
        How many were asked for; 0 for none. The bits of a run do not depend on it.
    clients
        How many clients a round has: more workers than that would have nothing to do.
    """
    cores = usable_cores()
    most = min(clients, max(cores, FEWEST_WORKERS))
    if workers <= most:
        return workers, []
    return most, [
        f"workers = {workers} is more than can be of use: the run uses {most} "
        f"(clients in a round: {clients}, cores: {cores})"
    ]
