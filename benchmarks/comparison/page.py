"""The page of the comparison, and the main table where it is shown, from the result files.

python -m benchmarks.comparison.page
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import matplotlib

from benchmarks.comparison import draws, scores
from benchmarks.comparison.__main__ import SMALLER
from benchmarks.comparison.gather import DRAWS, protocol_of
from benchmarks.comparison.overview import (
    Cell,
    filled,
    is_bound,
    kind_means,
    main_table,
    marked,
)
from benchmarks.comparison.plan import TRIALS, current, is_old, planned, trials_of
from benchmarks.comparison.plan import cells as all_cells
from benchmarks.comparison.ranks import Means, critical_difference, mean_ranks, picture, shared
from benchmarks.results_file import RESULTS
from fedtail.study.paired import difference

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "comparison.md"
SCORES_PAGE = ROOT / "docs" / "comparison-scores.md"
RESULTS_PAGE = ROOT / "docs" / "results.md"
README = ROOT / "README.md"
DOOR = (
    *("fedavg", "fedlc", "balancefl", "creff", "redgrape", "gbme"),
    *("bsm", "bsm,prior=global", "lade", "slac"),
)
"""The methods that the README shows."""
PICTURES = ROOT / "docs" / "figures"
TITLES = {
    "f": "Frozen features",
    "p": "Other pretrained features",
    "s": "From scratch, converged",
    "c": "The papers' common ground",
    "r": "Real clients",
    "n": "No tail",
}
SAID = {
    "f": "A linear head on features of EfficientNet-Lite0 (96 pixels, pretrained on ImageNet), 20 "
    "clients, 8 a round, 60 rounds.",
    "p": "A linear head on features of spoken words (64, speakers are clients, imbalance 20) and "
    "on mean word vectors of short texts (256, 20 clients, Dirichlet 0.3), 60 rounds.",
    "s": "A CNN of about 24,000 parameters, 2 local epochs, 120 rounds.",
    "c": "ResNet-8 of width 16, crop and flip, 20 clients, 8 a round, 100 rounds.",
    "r": "Patients, persons and speakers; whole clients are held out.",
    "n": "Balanced classes, split by Dirichlet 0.1.",
}
SHOWN = ("balanced_accuracy", "few")
OLD = "†"
UNTUNED = "‡"


def read(folder: str = "comparison") -> dict[str, Cell]:
    """Return the result files of a folder by cell."""
    paths = sorted((RESULTS / folder).glob("*.json"))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}


def text(cells: Mapping[str, Cell]) -> str:
    """Return the page."""
    commits = sorted(
        {c[:10] for cell in cells.values() for e in cell.values() for c in e["commit"]}
    )
    parts = [part(letter, cells) for letter in TITLES if of(letter, cells)]
    parts += [twice] if (twice := draws.text(read("random_draws"), cells)) else []
    return f"""# The comparison

<!-- Written by `python -m benchmarks.comparison.page` from benchmarks/results/comparison. -->

Every method under one protocol, fixed before any run (`benchmarks/protocols`): the same number of
trials over the local rate and the method's one or two main fields on seed 0, judged by what clients
hold out; the best values on other seeds. The test set chose nothing. Balanced accuracy / accuracy
over the rare classes (*few*), percent, mean ± standard deviation over seeds, of the round that
validation chose. Bold: the best mean of a column. With all data in one place (`centralised`) a
method is a bound: neither bold nor ranked. Ranks take cells for independent, which those of one
data set are not; intervals are each by itself. Validations are not in the traffic, though a method
that asks clients again after training (`slac`, `ccvr`) does so in each.

```bash
python -m benchmarks.features cifar10 cifar100 --out FOLDER
FEDTAIL_DATA=FOLDER python -m benchmarks.comparison f_cifar10_if100_dir0.1 f_cifar100_if100_dir0.1
```

[All scores](comparison-scores.md): many and medium classes, worst class, calibration, traffic and
time. The values that were found and scores by seed are in the files.
Commit{"s" if len(commits) > 1 else ""} {", ".join(f"`{c}`" for c in commits)}.

{chr(10).join(parts)}"""


def of(letter: str, cells: Mapping[str, Cell]) -> dict[str, Cell]:
    """Return the cells of one protocol."""
    return {name: cell for name, cell in cells.items() if protocol_of(name) == letter}


def part(letter: str, cells: Mapping[str, Cell]) -> str:
    """Return the tables of one protocol: scores, ranks, differences."""
    mine = of(letter, cells)
    lines = [
        f"## {TITLES[letter]}",
        "",
        f"{SAID[letter]} {tuned(letter)} {so_far(letter, mine)}{smaller(mine)}"
        f"{drawn(mine)}{marks(mine)}",
        "",
        table(mine),
        "",
    ]
    if len(mine) > 1 and len(shared(by_cell(mine))) > 2:
        lines += [ranked(letter, mine), ""]
    return "\n".join(lines)


def tuned(letter: str) -> str:
    """Say how each method's values were found."""
    trials = TRIALS[letter]
    return f"{trials} trials a method." if trials else "Nothing is tuned."


def so_far(letter: str, cells: Mapping[str, Cell]) -> str:
    """Say how much of what a protocol plans has been run."""
    plan = {name: planned(name) for name in all_cells() if protocol_of(name) == letter}
    asked = sum(map(len, plan.values()))
    done = sum(len(current(name, cells.get(name, {})) & set(plan[name])) for name in plan)
    if done == asked:
        return "All that is planned has been run."
    return f"Of {asked} planned results (a method in a cell) {done} are here."


def smaller(cells: Mapping[str, Cell]) -> str:
    """Say which methods were run with less than their defaults, where the table shows them."""
    said = [
        f" On {cell.partition('_')[2]}, `{method}` is `{words}`."
        for (cell, method), words in SMALLER.items()
        if any(name.startswith(f"{cell}_") and method in mine for name, mine in cells.items())
    ]
    return "".join(said)


def drawn(cells: Mapping[str, Cell]) -> str:
    """Say how many results have random trials: marks are on those alone that are made again."""
    entries = [entry for cell in cells.values() for entry in cell.values()]
    old = sum(bool(each.get("trials")) and each.get("draws") != DRAWS for each in entries)
    return (
        f" Trials of {old} of the {len(entries)} results shown were random, each method's own; "
        "those of the others are spread evenly, at the same rates for all."
        if old
        else ""
    )


def marks(cells: Mapping[str, Cell]) -> str:
    """Say what the marks of results mean, where the table has them."""
    shown = {mark(name, m, entry) for name, cell in cells.items() for m, entry in cell.items()}
    said = {
        OLD: "random, and to be made again; those without a mark stay.",
        UNTUNED: "not tuned: the rate of the file, which is the one that was found for FedAvg, and "
        "what else the method does by default.",
    }
    return "".join(f" {each}: {words}" for each, words in said.items() if each in shown)


def mark(cell: str, method: str, entry: Mapping[str, Any]) -> str:
    """Return what a result is marked with in a table."""
    if is_old(cell, method, entry):
        return OLD
    return UNTUNED if trials_of(cell, method) < TRIALS[protocol_of(cell)] else ""


def averages(cell: Cell, key: str) -> dict[str, float]:
    """Return the mean over seeds of one score by method; without a tail there is no *few*."""
    scores = {method: entry["kept"][key] for method, entry in cell.items()}
    return {method: fmean(each) for method, each in scores.items() if None not in each}


def by_cell(cells: Mapping[str, Cell], key: str = "balanced_accuracy") -> Means:
    """Return one score by cell and method that is compared."""
    return {
        name: {method: mean for method, mean in averages(cell, key).items() if not is_bound(method)}
        for name, cell in cells.items()
    }


def table(cells: Mapping[str, Cell]) -> str:
    """Return a row a method, a column a cell."""
    methods = list(dict.fromkeys(method for cell in cells.values() for method in cell))
    heads = [name.partition("_")[2].replace("_", " ") for name in cells]
    rows = [f"| | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    best = {
        (name, key): max(means.values(), default=None)
        for key in SHOWN
        for name, means in by_cell(cells, key).items()
    }
    for method in methods:
        shown = []
        for name, cell in cells.items():
            kept = cell[method]["kept"] if method in cell else {}
            known = [key for key in SHOWN if key in kept and None not in kept[key]]
            tops = [None if is_bound(method) else best[name, key] for key in known]
            pair = [_score(kept[key], top) for key, top in zip(known, tops, strict=True)]
            sign = mark(name, method, cell[method]) if method in cell else ""
            shown.append(" / ".join(pair) + sign or "–")
        rows.append(f"| {marked(method)} | {' | '.join(shown)} |")
    return "\n".join(rows)


def _score(values: Sequence[float], best: float | None) -> str:
    mean = fmean(values)
    spread = f" ± {100 * stdev(values):.1f}" if len(values) > 1 else ""
    number = f"{100 * mean:.1f}"
    return (f"**{number}**" if mean == best else number) + spread


def ranked(letter: str, cells: Mapping[str, Cell]) -> str:
    """Return mean ranks, differences to FedAvg and what methods cost, best first."""
    balanced = mean_ranks(by_cell(cells))
    rare = {
        name: {method: means[method] for method in balanced}
        for name, means in by_cell(cells, "few").items()
        if means  # this cell has a tail
    }
    few = mean_ranks(rare) if rare else {}
    over = "" if len(rare) == len(cells) else f" ({len(rare)} cell{'s' if len(rare) > 1 else ''})"
    heads = ["", "mean rank", f"mean rank, few{over}", "above FedAvg", "surely above / below"]
    heads += ["traffic over FedAvg's"]
    rows = [f"|{'|'.join(f' {head} ' for head in heads)}|", "|---" * len(heads) + "|"]
    for method, rank in balanced.items():
        above = [paired(cell, method) for cell in cells.values()]
        mean = fmean(each.mean for each in above)
        up = sum(each.sure and each.mean > 0 for each in above)
        down = sum(each.sure and each.mean < 0 for each in above)
        traffic = fmean(cell[method]["bytes"] / cell["fedavg"]["bytes"] for cell in cells.values())
        rows.append(
            f"| {marked(method)} | {rank:.1f} | {f'{few[method]:.1f}' if few else '–'} | "
            f"{100 * mean:+.1f} | {up} / {down} | {traffic:.2f} |"
        )
    width = critical_difference(len(balanced), len(cells))
    # Mean ranks of k methods are at most k - 1 apart.
    none = "; none can be further apart, so few are the cells" if width > len(balanced) - 1 else ""
    return "\n".join(
        [
            f"Ranks over {len(cells)} cells of the {len(balanced)} methods that all have; two mean",
            f"ranks less than {width:.1f} apart are not told apart (Nemenyi, 95 %{none}). *Above*:",
            "balanced accuracy, mean over cells; *surely*: in so many cells the 95 % interval",
            "of the difference, paired by seed, excludes zero.",
            "",
            f"![Mean ranks](figures/ranks_{letter}.svg)",
            "",
            *rows,
        ]
    )


def paired(cell: Cell, method: str, beside: str = "fedavg") -> Any:
    """Return the difference of two methods in a cell, paired by seed."""

    def by_seed(name: str) -> dict[int, float]:
        entry = cell[name]
        return dict(zip(entry["seeds"], entry["kept"]["balanced_accuracy"], strict=True))

    return difference(by_seed(method), by_seed(beside))


def with_tables(cells: Mapping[str, Cell]) -> dict[Path, str]:
    """Return the pages that show the main table, or a part of it, as they should be."""
    tables = {RESULTS_PAGE: main_table(cells), README: main_table(cells, DOOR)}
    return {path: filled(path.read_text(encoding="utf-8"), t) for path, t in tables.items()}


def write() -> None:
    """Write the page and the pictures."""
    cells = read()
    PAGE.write_text(text(cells), encoding="utf-8")
    SCORES_PAGE.write_text(scores.text(cells), encoding="utf-8")
    for path, page in with_tables(cells).items():
        path.write_text(page, encoding="utf-8")
    found = {letter: by_cell(of(letter, cells)) for letter in TITLES}
    for name, means in {**found, "kinds": kind_means(cells)}.items():
        if len(means) > 1 and len(shared(means)) > 2:
            # Without a date and with fixed names, so that the same numbers give the same file.
            with matplotlib.rc_context({"svg.hashsalt": "ranks"}):
                over = "cells" if name in TITLES else name
                figure = picture(mean_ranks(means), len(means), over)
                figure.savefig(PICTURES / f"ranks_{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    write()
