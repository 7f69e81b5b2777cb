"""BalanceFL's Table 4: the four switches removed one by one.

The paper's six rows, with the softmaxes of the authors' code, and the four rows with knowledge
inheritance again with those of the paper. The paper's own numbers stand beside them; they are
accuracies on CIFAR-10-LT, so their order is compared, not their size.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
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
DOMAINS = ("code", "paper")
SCORES = ("accuracy", "many", "medium", "few")


def scores(protocol: Plain, seed: int, method: Plain) -> dict[str, float]:
    """Return what a run ends with, in percent."""
    last = run(experiment(protocol, seed, {"name": "balancefl", **method})).metrics
    return {score: 100 * last[score] for score in SCORES}


def measure(protocol: Plain, seeds: int) -> dict[str, Any]:
    """Return every row in both domains, and each step of the ladder, seed by seed."""
    found: dict[str, dict[str, list[dict[str, float]]]] = {domain: {} for domain in DOMAINS}
    for row, switches in ROWS.items():
        for domain in DOMAINS:
            # Without inheritance and smoothing there is no softmax to choose.
            same = domain != DOMAINS[0] and not switches.get("inherit", True)
            found[domain][row] = (
                found[DOMAINS[0]][row]
                if same
                else [scores(protocol, k, {**switches, "domain": domain}) for k in range(seeds)]
            )
    return {
        "protocol": protocol,
        "seeds": list(range(seeds)),
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
    """Draw the ladder: the paper's, and ours in both domains."""
    figure = new_figure(8.6, 3.2)
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.6])
    names = list(ROWS)
    left.barh(names, [sum(PAPER[row]) / len(PAPER[row]) for row in names], color="0.75")
    left.set(title="the paper: CIFAR-10-LT", xlabel="accuracy in percent")
    for at, (domain, colour) in enumerate(zip(DOMAINS, ("tab:blue", "tab:orange"), strict=True)):
        rows = numbers["rows"][domain]
        mean = [rows[row]["accuracy"]["mean"] for row in names]
        places = [place + 0.4 * at - 0.2 for place in range(len(names))]
        right.barh(places, mean, height=0.38, color=colour, alpha=0.8, label=f"domain={domain}")
        for place, row in zip(places, names, strict=True):
            seeds = rows[row]["accuracy"]["by_seed"]
            right.plot(seeds, [place] * len(seeds), "k.", ms=4)
    lowest = min(
        value
        for rows in numbers["rows"].values()
        for row in rows.values()
        for value in row["accuracy"]["by_seed"]
    )
    right.set(title="here; a point is a seed", xlabel="accuracy in percent")
    right.set_xlim(left=max(0.0, lowest - 10))
    right.set_yticks(range(len(names)), [""] * len(names))
    right.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 0))
    for axes in (left, right):
        axes.invert_yaxis()
        axes.grid(axis="x", alpha=0.3)
    return figure


def main(words: Sequence[str] | None = None) -> None:
    """Measure, save, draw."""
    parser = arguments(__doc__, PROTOCOL)
    parser.add_argument("--rounds", type=int, help="rounds of a run; by default the protocol's")
    chosen = parser.parse_args(words)
    changes = read_protocol(Path(chosen.protocol), rounds=chosen.rounds)
    protocol = {**changes, "eval_every": changes["rounds"]}  # one test, after the last round
    numbers = measure(protocol, chosen.seeds)
    publish("balancefl_ablation", numbers, draw(numbers), chosen.out)


if __name__ == "__main__":
    main()
