"""A hundred thousand clients: what a round costs, and whether memory stays flat.

Synthetic clients of 20 samples, 100 of them in a round. The time of a round with 100,000 clients is
compared with the same with 1,000, in one run; memory is the resident set of this process.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.results_file import save
from fedtail import Experiment, FedAvg, LocalTraining, Natural
from fedtail.data.sources import Synthetic
from fedtail.engines import Embedded
from fedtail.engines.runtime import numerics
from fedtail.exchange import Ledger, drive
from fedtail.setting import Setting, prepare

WARM_UP = 20


def resident() -> int:
    """Return the bytes of this process that are in memory (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


class Federated:
    """A run without its loop's test and files: rounds only."""

    def __init__(self, clients: int) -> None:
        self.setting: Setting = prepare(
            Experiment(
                data=Synthetic(clients=clients, samples_per_client=20),
                partition=Natural(),
                per_round=100,
                rounds=1000,
                method=FedAvg(local=LocalTraining(lr=0.01, batch_size=10)),
            )
        )
        self.engine = Embedded(self.setting.runtime())
        self.state: Any = self.setting.method.init(self.setting.model, self.setting.server(0))
        self.rounds = 0

    def round(self) -> float:
        """Do one round and return its seconds."""
        began = time.perf_counter()
        self.rounds += 1
        server = self.setting.server(self.rounds)
        exchange = self.setting.method.round(self.state, server)
        self.state = drive(exchange, self.state, self.engine, server, Ledger())
        return time.perf_counter() - began


@contextmanager
def federated(clients: int) -> Iterator[Federated]:
    """Return a federation after some rounds of warming up."""
    run = Federated(clients)
    try:
        for _ in range(WARM_UP):
            run.round()
        yield run
    finally:
        run.engine.close()


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    with numerics(1), federated(options.clients) as large, federated(1_000) as small:
        before = resident()
        pairs = [(large.round(), small.round()) for _ in range(options.rounds)]
        after = resident()
    ratio = median(many / few for many, few in pairs)
    save(
        "scale",
        {
            "clients": options.clients,
            "seconds_per_round": round(median(many for many, _ in pairs), 4),
            "round_time_ratio_to_1000_clients": round(ratio, 3),
            "target_ratio": 1.5,
            "resident_gb": round(after / 1e9, 3),
            "target_resident_gb": 2,
            "growth_over_rounds_percent": round(100 * (after / before - 1), 3),
            "target_growth_percent": 2,
        },
    )


if __name__ == "__main__":
    main()
