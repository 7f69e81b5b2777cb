"""FedLC's Figures 2, 6 and 7: a local update, and classes that a client has little or nothing of.

One global model, trained by FedAvg, is sent to every client alone; each trains it with a method's
loss, and is tested over all classes. A client's classes are *frequent* (as many samples as its mean
present class, or more), *rare* (fewer) or *missing*. Beside it the accuracy after averaging.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from benchmarks.figures.common import (
    Plain,
    experiment,
    new_figure,
    publish,
    short_runs,
    summary,
)
from fedtail import Arrays, Experiment, Result, run
from fedtail.setting import Setting, prepare

METHODS: dict[str, Plain] = {
    "FedAvg": {"name": "fedavg"},
    "FedLC, absent classes masked": {"name": "fedlc", "tau": 4, "absent": 0},
    "FedLC": {"name": "fedlc", "tau": 4, "absent": 1},
}
GROUPS = ("frequent", "rare", "missing")
Accuracies = dict[str, float]


def measure(protocol: Plain, seeds: int) -> dict[str, Any]:
    """Return the accuracy of each group of classes before, after a local update and averaged."""
    found: dict[str, dict[str, list[Accuracies]]] = {title: {} for title in METHODS}
    for seed in range(seeds):
        chosen = experiment(protocol, seed, METHODS["FedAvg"])
        start, setting = run(chosen), prepare(chosen)
        counts = setting.split.counts
        for title, method in METHODS.items():
            everybody = range(len(counts))
            alone = [trained_on(setting, [k], start, method) for k in everybody]
            together = trained_on(setting, everybody, start, method)
            stages = {
                "before": [start.metrics["per_class"]] * len(counts),
                "after a local update": alone,
                "after averaging": [together] * len(counts),
            }
            for stage, accuracies in stages.items():
                found[title].setdefault(stage, []).append(by_group(counts, accuracies))
    return {
        "protocol": protocol,
        "seeds": list(range(seeds)),
        "methods": {
            title: {
                stage: {
                    group: summary([100 * each[group] for each in seen if group in each])
                    for group in GROUPS
                }
                for stage, seen in stages.items()
            }
            for title, stages in found.items()
        },
    }


def trained_on(
    setting: Setting, clients: Sequence[int], start: Result, method: Plain
) -> list[float]:
    """Return the accuracy by class after one round of some clients that begin at `start`."""
    parts = [setting.split.parts[k] for k in clients]
    train, test = setting.dataset.train, setting.dataset.test
    places = torch.from_numpy(np.concatenate(parts))
    data = Arrays(
        train.x[places],
        train.y[places],
        test.x,
        test.y,
        client_train=np.repeat(np.arange(len(parts)), [len(part) for part in parts]),
        classes=setting.dataset.classes,
    )
    local = setting.experiment.method.describe()["local"]
    accuracies: list[float] = run(
        Experiment(
            data=data,
            model=start.network,
            partition="natural",
            rounds=1,
            seed=setting.experiment.seed,
            method={"local": local, **method},
        )
    ).metrics["per_class"]
    return accuracies


def by_group(counts: np.ndarray, accuracies: Sequence[Sequence[float]]) -> Accuracies:
    """Return the mean accuracy over all clients' classes of each kind."""
    kinds: dict[str, list[float]] = {group: [] for group in GROUPS}
    for row, scores in zip(counts, accuracies, strict=True):
        usual = row[row > 0].mean()
        for n, score in zip(row, scores, strict=True):
            kinds["missing" if n == 0 else "frequent" if n >= usual else "rare"].append(score)
    return {group: fmean(scores) for group, scores in kinds.items() if scores}


def draw(numbers: Plain) -> Figure:
    """Draw a panel a stage, a group of bars a kind of class."""
    figure = new_figure(8.4, 3.2)
    stages = ("before", "after a local update", "after averaging")
    panels = figure.subplots(1, 3, sharey=True)
    colours = ("0.55", "tab:orange", "tab:blue")
    for axes, stage in zip(panels, stages, strict=True):
        for i, (title, found) in enumerate(numbers["methods"].items()):
            heights = [found[stage][group]["mean"] for group in GROUPS]
            errors = [found[stage][group]["std"] for group in GROUPS]
            places = [place + 0.27 * (i - 1) for place in range(len(GROUPS))]
            axes.bar(places, heights, 0.25, yerr=errors, color=colours[i], label=title)
        axes.set_title(stage, fontsize=10)
        axes.set_xticks(range(len(GROUPS)), GROUPS)
        axes.grid(axis="y", alpha=0.3)
    panels[0].set_ylabel("accuracy in percent")
    handles, titles = panels[0].get_legend_handles_labels()
    figure.legend(handles, titles, frameon=False, fontsize=8, loc="outside lower center", ncols=3)
    return figure


def main(words: Sequence[str] | None = None) -> None:
    """Measure, save, draw."""
    protocol, chosen = short_runs(__doc__, words)
    numbers = measure(protocol, chosen.seeds)
    publish("fedlc_local", numbers, draw(numbers), chosen.out)


if __name__ == "__main__":
    main()
