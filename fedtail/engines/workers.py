"""How many worker processes are of use."""

from __future__ import annotations

from typing import Literal

import torch

from fedtail.cores import usable_cores
from fedtail.errors import FedtailError

FEWEST_WORKERS = 2
"""Two workers are allowed on one core too: what is tried with a pool is then one everywhere."""


Workers = int | Literal["auto"]
"""How many processes; "auto" is none until cores are free and it is worth it."""


def check_workers(workers: Workers, device: torch.device) -> None:
    """Refuse worker processes that no tensor could be shared with: torch has it of no MPS."""
    if device.type == "mps" and workers not in ("auto", 0):
        raise FedtailError(
            f"workers = {workers}: processes cannot share what is on '{device}': "
            "give workers = 0, or device = 'cpu'"
        )


def allowed_workers(workers: Workers, clients: int) -> tuple[Workers, list[str]]:
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
    if workers == "auto" or workers <= most:
        return workers, []
    return most, [
        f"workers = {workers} is more than can be of use: the run uses {most} "
        f"(clients in a round: {clients}, cores: {cores})"
    ]
