"""What the cores that are free give, without being asked for: workers and jobs `auto` against none.

Wall time, on a machine where nothing else runs. Every pair ends with the same model, which is
checked.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.results_file import save
from fedtail import Arrays, Experiment, FedAvg, LocalTraining, compare, run
from fedtail.cores import free_cores, usable_cores
from fedtail.processes import dismiss, hire, keep


def small() -> Experiment:
    """Return a run of a few seconds: what `fedtail run` does without any option."""
    return Experiment()


def large() -> Experiment:
    """Return a run of ResNet-8 on random images: 10 clients of 128 samples."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (1280, 3, 32, 32), generator=generator, dtype=torch.uint8)
    y = torch.randint(0, 10, (1280,), generator=generator)
    return Experiment(
        data=Arrays(x, y, x[:100], y[:100], classes=[str(c) for c in range(10)]),
        model={"name": "resnet8", "width": 16},
        partition="iid",
        method=FedAvg(local=LocalTraining(lr=0.01, batch_size=32)),
        rounds=30,
    )


def seconds_to_start(repeats: int) -> dict[str, float]:
    """Return how long two new processes take to be ready, and two that were kept."""
    new: list[float] = []
    kept: list[float] = []
    for _ in range(repeats):
        dismiss(hire(2))
        for times in (new, kept):
            began = time.perf_counter()
            hands = hire(2)
            for hand in hands:
                hand.ready()
            times.append(time.perf_counter() - began)
            keep(hands)
    return {"new": round(median(new), 2), "kept": round(median(kept), 4)}


def timed(experiment: Experiment) -> tuple[float, str]:
    """Return how long a run takes, and its model."""
    began = time.perf_counter()
    digest = run(experiment).digest
    return time.perf_counter() - began, digest


def workers(experiment: Experiment) -> dict[str, float]:
    """Return the seconds of a run alone, with workers `auto` that are new, and with kept ones."""
    timed(experiment.but(rounds=1, workers=0))  # what is first used is imported
    alone, expected = timed(experiment.but(workers=0))
    dismiss(hire(2, main=False))
    (new, first), (kept, second) = timed(experiment), timed(experiment)
    assert expected == first == second
    return {"alone": round(alone, 2), "auto": round(new, 2), "auto, kept": round(kept, 2)}


def study() -> dict[str, float]:
    """Return the seconds of four methods on the digits, one by one and with jobs `auto`."""
    base = Experiment(tail={"name": "exponential", "imbalance": 20}, clients=20, per_round=8)
    methods = {"method": ["fedavg", "fedlc", "fedprox", "bsm"]}
    found, models = {}, []
    for jobs in (1, "auto"):
        dismiss(hire(2, main=False))
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            chosen: Any = jobs
            compare(base.but(rounds=60, workers=0), methods, out=folder, jobs=chosen)
            found[f"jobs {jobs}"] = round(time.perf_counter() - began, 2)
            files = sorted(Path(folder).glob("*/model.safetensors"))
            models.append([file.read_bytes() for file in files])
    assert models[0] == models[1]
    return found


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="how often processes are started")
    repeats = parser.parse_args().repeats
    numbers = {
        "cores": usable_cores(),
        "of these free": free_cores(),
        "seconds_to_start_two": seconds_to_start(repeats),
        "small_run": workers(small()),
        "large_run": workers(large()),
        "study": study(),
    }
    save("cores", numbers)


if __name__ == "__main__":
    main()
