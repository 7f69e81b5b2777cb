"""What a table costs: samples to process, and hours at a measured speed."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import numpy as np

from fedtail.experiment import Experiment
from fedtail.methods import FedAvg
from fedtail.models import ModelSpec
from fedtail.reproduce.recipe import Cell, Scale, Table, papers_folder
from fedtail.training import LocalTraining

LONG = 12.0
"""From so many hours on, a GPU is advised."""
SAME_SPEED = ("name", "experts", "scale")
"""What changes a speed little: the recipes have about 3 experts, and a scale is one product."""


@dataclass(frozen=True)
class Cost:
    """What running a table takes.

    Attributes
    ----------
    samples
        Training samples processed, all cells and seeds, once for each pass.
    hours
        At the speed measured for each model; nothing where none was.
    """

    runs: int
    samples: float
    hours: float | None

    @property
    def gpu(self) -> bool:
        """Whether a GPU is advised."""
        return self.hours is None or self.hours > LONG


def cost(table: Table, scale: Scale) -> Cost:
    """Estimate what the runnable cells of a table take."""
    seeds, speeds = table.seeds(scale), measured_speeds()
    samples, hours, runs = 0.0, 0.0, 0
    known = True
    for cell in table.cells:
        if table.not_run(cell):
            continue
        experiment = table.experiment(cell, scale, seed=0)
        passed = seeds * samples_of(table, cell, experiment)
        speed = speeds.get(network(experiment.model))
        known &= speed is not None
        samples, runs = samples + passed, runs + seeds
        hours += passed / speed / 3600 if speed else 0.0
    return Cost(runs, samples, hours if known else None)


def samples_of(table: Table, cell: Cell, experiment: Experiment) -> float:
    """Return how many training samples one run processes, evaluation not counted."""
    size = table.recipe.size[cell.dataset]
    held = experiment.tail.counts(np.full(size.classes, size.per_class)).sum()
    clients = experiment.clients or 10
    cohort = experiment.per_round or clients
    method = experiment.method
    local = method.local if isinstance(method, FedAvg) else LocalTraining()
    if local.steps:
        return float(experiment.rounds * cohort * local.steps * local.batch_size)
    return float(experiment.rounds * math.ceil(held * cohort / clients) * local.epochs)


def network(model: ModelSpec) -> str:
    """Return a network's name and what differs from its defaults, as far as its speed does."""
    own = {key: value for key, value in model.describe().items() if key not in SAME_SPEED}
    usual = {key: field.default for key, field in type(model).model_fields.items()}
    changed = [f"{key}={value}" for key, value in own.items() if value != usual[key]]
    return ",".join([model.name, *changed])


def measured_speeds() -> dict[str, float]:
    """Return the samples a second that each network trains on one thread (`benchmarks.models`)."""
    path = papers_folder() / "speeds.json"
    speeds: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
    return speeds
