"""What it is worth that freed memory is kept: rounds with and without, in turn.

Each is measured in a process of its own, because glibc is told once; one of them has the variable
that says "I have decided already", set to nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from functools import partial
from statistics import median

from benchmarks.results_file import save
from benchmarks.speed import Case, federated_round, seconds, setting_of
from fedtail.allocator import MALLOC_VARIABLES
from fedtail.cores import machine_load
from fedtail.engines import Embedded
from fedtail.engines.runtime import numerics
from fedtail.models.cnn import SmallCNN
from fedtail.models.resnet import ResNet8

CASES = [
    Case("digits_cnn", "digits_cnn", (1, 8, 8), 640, 1.0),
    Case("small_cnn", SmallCNN(width=16, norm="group"), (1, 28, 28), 640, 1.0),
    Case("resnet8 of width 16", ResNet8(width=16), (3, 32, 32), 640, 1.0),
]
PAIRS, ROUNDS = 5, 7
ONE = "--one"


def rates() -> list[float]:
    """Return samples per processor second of each network, here."""
    return [case.samples / median(_rounds(case)) for case in CASES]


def _rounds(case: Case) -> list[float]:
    setting = setting_of(case, threads=1)
    with numerics(1), closing(Embedded(setting.runtime())) as engine:
        work = partial(federated_round, setting, engine)
        work()
        return [seconds(work) for _ in range(ROUNDS)]


def _of_a_process(environment: dict[str, str]) -> list[float]:
    told = [sys.executable, "-m", "benchmarks.allocator", ONE]
    printed = subprocess.run(told, env=environment, check=True, capture_output=True, text=True)
    found: list[float] = json.loads(printed.stdout)
    return found


def main() -> None:
    """Measure and save."""
    kept = {name: value for name, value in os.environ.items() if name not in MALLOC_VARIABLES}
    given_back = kept | {MALLOC_VARIABLES[-1]: ""}
    pairs = [(_of_a_process(given_back), _of_a_process(kept)) for _ in range(PAIRS)]
    before, after = (
        [median(each) for each in zip(*side, strict=True)] for side in zip(*pairs, strict=True)
    )
    save(
        "allocator",
        {
            "samples_per_processor_second": [
                {
                    "model": case.name,
                    "given_back": round(was),
                    "kept": round(now),
                    "ratio": round(now / was, 3),
                }
                for case, was, now in zip(CASES, before, after, strict=True)
            ],
            "load_of_the_machine_afterwards": machine_load(),
        },
    )


if __name__ == "__main__":
    if ONE in sys.argv:
        print(json.dumps(rates()))
    else:
        main()
