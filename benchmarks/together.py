"""How much faster clients train together than one by one.

Both run the same rounds of the same experiment in one process, by turns, with all that a round
costs: plans, payloads, checks, sums and the server's step, but no test. The ratio is that of the
median processor times of a round. ``--before FILE`` takes the seconds of one by one from what
``--alone FILE`` wrote: of an older commit, in the same minutes (see the README).
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from fedtail import IID, Arrays, Dirichlet, Experiment, FedAvg, LocalTraining
from fedtail.engines import Embedded
from fedtail.engines.runtime import numerics
from fedtail.exchange import Ledger, drive
from fedtail.models import MLP
from fedtail.setting import Setting, prepare

CLIENTS, PER_ROUND, SAMPLES = 100, 50, 20


@dataclass(frozen=True)
class Case:
    """100 clients of 20 samples, 50 in a round; how many times as fast it has to be."""

    model: Any
    target: float
    ragged: bool = False
    features: int = 0
    classes: int = 10


CASES = {
    "logistic": Case(MLP(hidden=()), 10),
    "logistic, ragged": Case(MLP(hidden=()), 8, ragged=True),
    "MLP": Case(MLP(hidden=(32,)), 5),
    "8x8 CNN": Case("digits_cnn", 3),
    "head of 1,280 features and 100 classes": Case(MLP(hidden=()), 8, features=1280, classes=100),
}


def setting_of(case: Case) -> Setting:
    """Return a federation of random samples, equally many or ragged, in batches of ten."""
    generator = torch.Generator().manual_seed(0)
    count = CLIENTS * SAMPLES
    shape = (case.features,) if case.features else (1, 8, 8)
    x = torch.rand(count, *shape, generator=generator)
    y = torch.randint(0, case.classes, (count,), generator=generator)
    return prepare(
        Experiment(
            data=Arrays(x, y, x[:100], y[:100], classes=[str(c) for c in range(case.classes)]),
            model=case.model,
            partition=Dirichlet(alpha=0.3) if case.ragged else IID(),
            clients=CLIENTS,
            per_round=PER_ROUND,
            rounds=1000,
            device="cpu",
            method=FedAvg(local=LocalTraining(lr=0.05, batch_size=10)),
        )
    )


class Rounds:
    """One run, round by round.

    Parameters
    ----------
    setting, start
        What is run, and the model that it begins with.
    together
        Whether clients train together, as many as the rule says.
    """

    def __init__(self, setting: Setting, start: dict[str, Tensor], together: bool) -> None:
        runtime = setting.runtime()
        if together:
            from fedtail.engines.block_size import block_size

            runtime.together, _ = block_size("auto", runtime, PER_ROUND)
            if not runtime.together:
                raise RuntimeError("the rule trains these clients one by one")
        self.setting, self.engine = setting, Embedded(runtime)
        server = setting.server(0)
        self.state = replace(setting.method.init(setting.model, server), model=dict(start))
        self.number = 0
        self.seconds: list[float] = []

    def go(self, rounds: int) -> None:
        """Do some rounds, and note how much processor time each took."""
        for _ in range(rounds):
            self.number += 1
            server, began = self.setting.server(self.number), time.process_time()
            exchange = self.setting.method.round(self.state, server)
            self.state = drive(exchange, self.state, self.engine, server, Ledger())
            self.seconds.append(time.process_time() - began)


def measure(case: Case, turns: int, rounds: int, both: bool) -> dict[str, float]:
    """Return milliseconds of a round, one by one and together, and how far the models are apart."""
    setting = setting_of(case)
    start = setting.model.tensors()
    runs = [Rounds(setting, start, together) for together in ((False, True) if both else (False,))]
    for _ in range(turns + 1):
        for one in runs:
            one.go(rounds)
    found = [1000 * median(one.seconds[rounds:]) for one in runs]  # the first turn warms up
    if not both:
        return {"alone_ms": round(found[0], 2)}
    models = [one.state.model for one in runs]
    apart = max(float((models[0][n] - models[1][n]).abs().max()) for n in models[0])
    return {
        "alone_ms": round(found[0], 2),
        "together_ms": round(found[1], 2),
        "times": round(found[0] / found[1], 2),
        "clients_in_a_block": runs[1].engine.runtime.together,
        "largest_difference": apart,
        "target": case.target,
    }


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--alone", type=Path, help="only one by one; write its milliseconds there")
    parser.add_argument("--before", type=Path, help="compare with these milliseconds as well")
    args = parser.parse_args()
    with numerics(1):
        found = {
            name: measure(case, args.turns, args.rounds, args.alone is None)
            for name, case in CASES.items()
        }
    if args.alone is not None:
        args.alone.write_text(json.dumps({n: f["alone_ms"] for n, f in found.items()}))
        return
    before = {} if args.before is None else json.loads(args.before.read_text())
    for name, numbers in found.items():
        if name in before:
            numbers["before_ms"] = before[name]
            numbers["times_before"] = round(before[name] / numbers["together_ms"], 2)
    from benchmarks.results_file import save

    save("together", found)


if __name__ == "__main__":
    main()
