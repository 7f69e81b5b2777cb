"""RedGrape's Figure 3: training with the second head and without it.

Without Ŵ the head W is given both gradients, that of the local data and that of the balanced set.
FedAvg stands beside them. Accuracy over rounds, overall and on the few-shot classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.figures.common import (
    DEMO,
    Plain,
    arguments,
    experiment,
    new_figure,
    publish,
    read_protocol,
    summary,
)
from fedtail import run

METHODS: dict[str, Plain] = {
    "with the second head": {"name": "redgrape"},
    "without it": {"name": "redgrape", "second_head": False},
    "FedAvg": {"name": "fedavg"},
}
SCORES = ("accuracy", "few")


def measure(protocol: Plain, seeds: int) -> dict[str, Any]:
    """Return the curves of every method, and where they end."""
    methods: dict[str, Any] = {}
    rounds: list[int] = []
    for title, method in METHODS.items():
        histories = [run(experiment(protocol, seed, method)).history for seed in range(seeds)]
        tested = [[r for r in records if r["accuracy"] is not None] for records in histories]
        rounds = [record["round"] for record in tested[0]]
        methods[title] = {
            "method": method,
            "last_round": {s: summary([100 * h[-1][s] for h in tested]) for s in SCORES},
            "curves": {
                s: [[round(100 * r[s], 2) for r in records] for records in tested] for s in SCORES
            },
        }
    return {
        "protocol": protocol,
        "seeds": list(range(seeds)),
        "tested_after_round": rounds,
        "methods": methods,
    }


def draw(numbers: Plain) -> Figure:
    """Draw the mean of the seeds, and in pale the seeds themselves."""
    figure = new_figure(7.6, 3.2)
    panels = figure.subplots(1, 2)
    rounds = numbers["tested_after_round"]
    titles = ("all classes", "few-shot classes")
    for axes, score, title in zip(panels, SCORES, titles, strict=True):
        for (name, found), colour in zip(
            numbers["methods"].items(), ("tab:blue", "tab:orange", "0.5"), strict=True
        ):
            each = found["curves"][score]
            for curve in each:
                axes.plot(rounds, curve, color=colour, lw=0.7, alpha=0.35)
            mean = [sum(values) / len(values) for values in zip(*each, strict=True)]
            axes.plot(rounds, mean, color=colour, lw=2, label=name)
        axes.set(title=title, xlabel="round", ylim=(0, 100))
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("accuracy in percent")
    panels[0].legend(frameon=False, fontsize=8, loc="lower right")
    return figure


def main(words: Sequence[str] | None = None) -> None:
    """Measure, save, draw."""
    parser = arguments(__doc__, DEMO)
    parser.add_argument("--rounds", type=int, help="rounds of a run; by default the protocol's")
    chosen = parser.parse_args(words)
    every = 2 if chosen.rounds is None else max(1, chosen.rounds // 30)
    protocol = read_protocol(Path(chosen.protocol), rounds=chosen.rounds, eval_every=every)
    numbers = measure(protocol, chosen.seeds)
    publish("redgrape_heads", numbers, draw(numbers), chosen.out)


if __name__ == "__main__":
    main()
