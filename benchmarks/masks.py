"""What a secure sum costs: bytes and processor milliseconds, for each client and for the server.

Members are real and keep their secrets in files; the vectors are of random numbers. Milliseconds
are processor time of one thread, the median over clients where each does the same; `lost` of them
share their secrets and do not deliver.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
import torch

from benchmarks.results_file import save
from fedtail.engines.executor import Done
from fedtail.engines.runtime import numerics
from fedtail.privacy.layout import Slot
from fedtail.privacy.secure.desk import Desk
from fedtail.privacy.secure.exchange import SecureExchange, Steps
from fedtail.privacy.secure.fixed import encoded
from fedtail.privacy.secure.member import SECURE, Member, empty_vector
from fedtail.privacy.secure.terms import (
    SumKind,
    Terms,
    new_attempt,
    payload_digest,
    threshold_of,
)
from fedtail.protocol import Payload, Task

T = TypeVar("T")
CASES = {
    "10 clients, 10^6 numbers, 32 bits": (10, 10**6, 32, 0),
    "10 clients, 10^6 numbers, 64 bits": (10, 10**6, 64, 0),
    "10 clients, 10^6 numbers, 64 bits, 2 lost": (10, 10**6, 64, 2),
    "100 clients, 10^5 numbers, 64 bits": (100, 10**5, 64, 0),
}


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """Return a result and the processor milliseconds it took."""
    began = time.process_time()
    result = work()
    return result, 1000 * (time.process_time() - began)


def measure(clients: int, numbers: int, width: int, lost: int, folder: Path) -> dict[str, float]:
    """Hold one secure sum, and check it."""
    model, slots = Payload({"model/w": torch.zeros(4)}), [Slot("tensor", "w", (numbers,), False)]
    kind = SumKind(None, "train", payload_digest(model, SECURE), "")
    cohort, t = tuple(range(clients)), threshold_of(2 / 3, clients)
    exchange = SecureExchange(Terms("bench", 1, "", new_attempt(), t, width, cohort, clients, kind))
    member, steps = Member(Desk(folder, durable=False)), dict[str, list[float]]()

    def drive(generator: Steps[Any]) -> tuple[Any, float]:
        answer: Any = None
        own = 0.0
        while True:
            began = time.process_time()
            try:
                tasks = generator.send(answer)
            except StopIteration as stop:
                return stop.value, own + 1000 * (time.process_time() - began)
            own += 1000 * (time.process_time() - began)
            answer = []
            for task in tasks:
                found, spent = timed(partial(member.perform, task))
                steps.setdefault(task.action, []).append(spent)
                answer.append(Done(found, {}))

    _, begun = drive(exchange.begin())
    told, real = exchange.told(model), 20
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(numbers, generator=draw).double()
    total = empty_vector(numbers, width)
    for client in cohort[lost:]:
        whole, spent = timed(lambda: encoded(x, slots, clients, width, real))
        steps.setdefault("encode", []).append(spent)
        _, spent = timed(partial(member.masked, Task(client, "train", told), "", whole))
        steps.setdefault("mask", []).append(spent)
        total += whole
    masks, ended = drive(exchange.masks(cohort[lost:], numbers))
    clear = encoded(x, slots, clients, width, real) * total.dtype.type(clients - lost)
    assert np.array_equal(total - masks, clear)
    beside = [sum(both) for both in exchange.traffic.values()]
    return {
        "clients": clients,
        "numbers": numbers,
        "vector_bytes": total.nbytes,
        "other_bytes_per_client": round(median(beside)),
        "client_mask_ms": round(median(steps["mask"]), 1),
        "client_encode_ms": round(median(steps["encode"]), 1),
        "client_other_steps_ms": round(
            sum(median(spent) for name, spent in steps.items() if name.startswith("secure_")), 1
        ),
        "server_ms": round(begun + ended, 1),
    }


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    only = parser.parse_args().only
    with numerics(1), TemporaryDirectory() as folder:
        found = {
            name: measure(*case, Path(folder) / name)
            for name, case in CASES.items()
            if only in name
        }
    save("masks", {"threads": 1, "cases": found})


if __name__ == "__main__":
    main()
