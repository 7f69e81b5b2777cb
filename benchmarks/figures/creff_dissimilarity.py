"""CReFF's Figure 4: how far the federated features' gradients are from the real ones, by class.

The dissimilarity is Eq. 6, the mean of 1 − cos over the rows of the head's gradient. It is taken
after the matching steps of every round; round 0 is before the first of them. A class that no client
of a round holds is not matched and has no value there.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from benchmarks.figures.common import (
    Plain,
    experiment,
    new_figure,
    publish,
    short_runs,
    summary,
)
from fedtail import CReFF, Server, run
from fedtail.protocol import Tensors
from fedtail.training.class_gradients import ClassGradients
from fedtail.training.federated_features import Matched

Curves = list[list[float | None]]
"""Of each class the dissimilarity before the first step, then after each round."""


class ByClass(CReFF):
    """CReFF that logs what it matched, class by class."""

    def match(self, features: Tensor, head: Tensors, g: ClassGradients, server: Server) -> Matched:
        """Match, and log."""
        matched = super().match(features, head, g, server)
        for c, before, after in zip(g[0], matched.before, matched.after, strict=True):
            server.log(f"before_{int(c)}", float(before))
            server.log(f"after_{int(c)}", float(after))
        return matched


def curves(protocol: Plain, seed: int) -> Curves:
    """Run one seed."""
    described = experiment(protocol, seed, {"name": "creff"})
    fields = {name: getattr(described.method, name) for name in CReFF.model_fields}
    history = run(described.but(method=ByClass(**fields))).history
    classes = range(len(history[-1]["per_class"]))
    first = history[0]["method"]
    return [
        [
            rounded(first.get(f"before_{c}")),
            *(rounded(r["method"].get(f"after_{c}")) for r in history),
        ]
        for c in classes
    ]


def rounded(value: float | None) -> float | None:
    """Return four digits after the point, if there is a value."""
    return None if value is None else round(value, 4)


def over_classes(found: Curves, moment: int, of: Any = fmean) -> float:
    """Return the mean (or another summary) of the classes that were matched at that moment."""
    return float(of([curve[moment] for curve in found if curve[moment] is not None]))


def measure(protocol: Plain, seeds: int) -> dict[str, Any]:
    """Return all curves, and their mean and worst class over time."""
    found = [curves(protocol, seed) for seed in range(seeds)]
    moments = range(len(found[0][0]))
    means = [summary([over_classes(each, t) for each in found]) for t in moments]
    worst = [summary([over_classes(each, t, max) for each in found]) for t in moments]
    return {
        "protocol": protocol,
        "seeds": list(range(seeds)),
        "mean_over_classes": [m["mean"] for m in means],
        "mean_over_classes_by_seed": [m["by_seed"] for m in means],
        "worst_class": [w["mean"] for w in worst],
        "by_seed_class_round": found,
    }


def draw(numbers: Plain) -> Figure:
    """Draw the classes of the first seed, from the most frequent to the rarest, and the mean."""
    figure = new_figure(6.4, 3.6)
    axes = figure.subplots()
    found: Curves = numbers["by_seed_class_round"][0]
    means: Sequence[float] = numbers["mean_over_classes"]
    rounds = range(len(means))
    for c, curve in enumerate(found):
        shade = 0.15 + 0.75 * c / max(1, len(found) - 1)
        known = [float("nan") if value is None else value for value in curve]
        axes.plot(rounds, known, color=(shade, 0.35, 1 - shade), lw=1, marker=".", ms=3)
    axes.plot([], [], color=(0.15, 0.35, 0.85), lw=1, label="a class, most frequent (seed 0)")
    axes.plot([], [], color=(0.9, 0.35, 0.1), lw=1, label="a class, rarest (seed 0)")
    axes.plot(rounds, means, color="black", lw=2, label="mean of classes and seeds")
    axes.set(xlabel="round", ylabel="gradient dissimilarity", ylim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
    return figure


def main(words: Sequence[str] | None = None) -> None:
    """Measure, save, draw."""
    protocol, chosen = short_runs(__doc__, words)
    numbers = measure(protocol, chosen.seeds)
    publish("creff_dissimilarity", numbers, draw(numbers), chosen.out)


if __name__ == "__main__":
    main()
