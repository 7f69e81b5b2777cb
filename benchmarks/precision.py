"""What a body in bfloat16 is worth: rounds in it and in float32, in turn, in one process.

Counts only on the processor it was measured on: without instructions for bfloat16 it is slower.
"""

from __future__ import annotations

from contextlib import closing
from functools import partial

import torch

from benchmarks.results_file import save
from benchmarks.speed import Case, federated_round, seconds, setting_of
from fedtail.cores import machine_load
from fedtail.engines import Embedded
from fedtail.engines.runtime import numerics
from fedtail.models.cnn import SmallCNN
from fedtail.models.resnet import ResNet8

CASES = [
    Case("small_cnn, GroupNorm", SmallCNN(width=16, norm="group"), (1, 28, 28), 640, 1.0),
    Case("small_cnn, BatchNorm", SmallCNN(width=16, norm="batch"), (1, 28, 28), 640, 1.0),
    Case("resnet8 of width 16", ResNet8(width=16), (3, 32, 32), 640, 1.0),
    Case("resnet8", "resnet8", (3, 32, 32), 320, 1.0),
]
TYPES = (torch.float32, torch.bfloat16)
PAIRS = 7


def measured(case: Case) -> dict[str, float | str]:
    """Return samples per processor second in both, of each the tenth percentile of the times."""
    setting = setting_of(case, threads=1)
    times: dict[torch.dtype, list[float]] = {kind: [] for kind in TYPES}
    with numerics(1), closing(Embedded(setting.runtime())) as engine:
        work = partial(federated_round, setting, engine)
        for turn in range(1 + PAIRS):
            for kind, found in times.items():
                setting.model.compute_in(kind)
                took = seconds(work)
                found += [took] if turn else []  # the first is for the caches
    whole, half = (case.samples / sorted(each)[len(each) // 10] for each in times.values())
    return {
        "model": case.name,
        "float32": round(whole),
        "bfloat16": round(half),
        "ratio": round(half / whole, 2),
    }


def main() -> None:
    """Measure and save."""
    rates = [measured(case) for case in CASES]
    save(
        "precision",
        {
            "samples_per_processor_second": rates,
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "load_of_the_machine_afterwards": machine_load(),
        },
    )


if __name__ == "__main__":
    main()
