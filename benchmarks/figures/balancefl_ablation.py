"""BalanceFL's Table 4: the four switches removed one by one.

The paper's six rows, with the softmaxes of the authors' code (the default) or with those of the
paper (`--domains code paper` has both). A score is the mean of the last rounds' tests: one round
more or less moves it by more than the paper's smaller steps. The paper's own numbers stand beside;
they are accuracies on CIFAR-10-LT, so their order is compared, not their size. A second protocol is
on Fashion-MNIST (`--protocol benchmarks/figures/balancefl_ablation_fashion.toml`); the results bear
the name of theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from benchmarks.figures.common import (
    FOLDER,
    Plain,
    arguments,
    experiment,
    new_figure,
    publish,
    read_protocol,
    summary,
)
from fedtail import run

PROTOCOL = FOLDER / "balancefl_ablation.toml"
OFF = {"inherit": False, "augment_features": False, "smooth": False}
ROWS: dict[str, dict[str, Any]] = {
    "all four": {},
    "no smoothing": {"smooth": False},
    "inheritance + sampling": {"smooth": False, "augment_features": False},
    "inheritance": {"smooth": False, "augment_features": False, "sampler": "shuffled"},
    "sampling": OFF,
    "none (FedAvg)": {**OFF, "sampler": "shuffled"},
}
PAPER = {
    "all four": (58.4, 58.0, 58.4),
    "no smoothing": (57.1, 56.8, 57.4),
    "inheritance + sampling": (55.8, 56.1, 55.6),
    "inheritance": (48.9, 48.5, 49.1),
    "sampling": (38.2, 39.0, 38.0),
    "none (FedAvg)": (36.8, 37.8, 37.0),
}
COLOURS = {"code": "tab:blue", "paper": "tab:orange"}
SCORES = ("accuracy", "many", "medium", "few")


def scores(protocol: Plain, seed: int, method: Plain, last: int) -> dict[str, float]:
    """Return the mean of the last rounds' tests, in percent."""
    history = run(experiment(protocol, seed, {"name": "balancefl", **method})).history
    return {score: 100 * fmean(r[score] for r in history[-last:]) for score in SCORES}


def measure(protocol: Plain, seeds: int, last: int, domains: Sequence[str]) -> dict[str, Any]:
    """Return every row in each domain, and each step of the ladder, seed by seed."""
    found = {
        domain: {
            row: [
                scores(protocol, seed, {**switches, "domain": domain}, last)
                for seed in range(seeds)
            ]
            for row, switches in ROWS.items()
        }
        for domain in domains
    }
    return {
        "protocol": protocol,
        "seeds": list(range(seeds)),
        "mean_of_last_rounds": last,
        "switches": ROWS,
        "rows": {
            domain: {row: ends(runs) for row, runs in rows.items()}
            for domain, rows in found.items()
        },
        "steps": {domain: steps(rows) for domain, rows in found.items()},
        "paper_rows": PAPER,
    }


def ends(runs: Sequence[Plain]) -> dict[str, Any]:
    """Return each score over seeds."""
    return {score: summary([each[score] for each in runs]) for score in SCORES}


def steps(rows: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Return what each row has over the next one in accuracy; the paper's are all above zero."""
    return {
        f"{upper} − {lower}": summary(
            [a["accuracy"] - b["accuracy"] for a, b in zip(rows[upper], rows[lower], strict=True)]
        )
        for upper, lower in pairwise(rows)
    }


def draw(numbers: Plain) -> Figure:
    """Draw the ladder: the paper's, and ours in each domain."""
    figure = new_figure(8.6, 3.2)
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.6])
    names = list(ROWS)
    left.barh(names, [sum(PAPER[row]) / len(PAPER[row]) for row in names], color="0.75")
    left.set(title="the paper: CIFAR-10-LT", xlabel="accuracy in percent")
    measured = numbers["rows"]
    for at, (domain, rows) in enumerate(measured.items()):
        places = [place + 0.25 * at for place in range(len(names))]
        mean = [rows[row]["accuracy"]["mean"] for row in names]
        right.plot(mean, places, "o", ms=8, color=COLOURS[domain], label=f"domain={domain}")
        for place, row in zip(places, names, strict=True):
            seeds = rows[row]["accuracy"]["by_seed"]
            right.plot(seeds, [place] * len(seeds), "k.", ms=4)
    right.set(title="here: mean, and a point a seed", xlabel="accuracy in percent")
    right.set_yticks(range(len(names)), [""] * len(names))
    if len(measured) > 1:
        right.legend(frameon=False, fontsize=8, loc="upper left")
    for axes in (left, right):
        axes.invert_yaxis()
        axes.grid(axis="x", alpha=0.3)
    return figure


def main(words: Sequence[str] | None = None) -> None:
    """Measure, save, draw."""
    parser = arguments(__doc__, PROTOCOL)
    parser.add_argument("--rounds", type=int, help="rounds of a run; by default the protocol's")
    parser.add_argument("--last", type=int, default=10, help="rounds in a score (default: 10)")
    parser.add_argument(
        "--domains", nargs="+", choices=sorted(COLOURS), default=["code"], help="softmaxes"
    )
    chosen = parser.parse_args(words)
    protocol = read_protocol(chosen.protocol, rounds=chosen.rounds)
    numbers = measure(protocol, chosen.seeds, chosen.last, chosen.domains)
    publish("balancefl_ablation", numbers, draw(numbers), chosen.out, chosen.protocol.stem)


if __name__ == "__main__":
    main()
