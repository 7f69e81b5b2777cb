"""The main table of the results: what each method scores on each kind of cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from fedtail.methods import Method
from fedtail.study.spec import split_spec

Cell = Mapping[str, Mapping[str, Any]]

KINDS = {
    "f_cifar10_": "CIFAR-10-LT, features",
    "f_cifar100_": "CIFAR-100-LT, features",
    "p_": "words and texts, features",
    "s_": "Fashion-MNIST-LT, from scratch",
    "c_": "CIFAR-10-LT, ResNet-8",
    "r_hapt": "HAPT, people",
    "r_mitbih": "MIT-BIH, patients",
    "r_speech": "words, speakers, no tail",
    "n_": "Fashion-MNIST, no tail",
}
"""Columns, by how the names of their cells begin."""
MARKS = "<!-- made by `python -m benchmarks.comparison.page` -->\n", "<!-- end -->"


def main_table(cells: Mapping[str, Cell], only: Sequence[str] = ()) -> str:
    """Return a row a method: balanced accuracy / few, means over the cells of a kind.

    A kind is empty where the method lacks one of its cells, and a method is left out that lacks
    some of every kind. Sorted by the mean difference to FedAvg
    over the cells that have a tail and that the method has; methods that have less than half of
    them come last.
    """
    kinds = by_kind(cells)
    methods = only or dict.fromkeys(method for cell in cells.values() for method in cell)
    above = {method: _above(method, kinds) for method in methods}
    half = max(count for _, count in above.values()) / 2
    order = sorted(methods, key=lambda m: (above[m][1] >= half, above[m][0]), reverse=True)
    heads = ["", *(f"{title} ({len(found)})" for title, found in kinds.items())]
    heads += ["above FedAvg", "cells"]
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for method in order:
        shown = [_mean(method, found) for found in kinds.values()]
        mean, count = above[method]
        if any(shown):
            rows.append(f"| {marked(method)} | {' | '.join(shown)} | {100 * mean:+.1f} | {count} |")
    return "\n".join(rows)


def kind_means(cells: Mapping[str, Cell]) -> dict[str, dict[str, float]]:
    """Return balanced accuracy by kind with a tail and method, means over the cells of a kind.

    A method stands in a kind if it has all its cells.
    """
    tailed = {name: cell for name, cell in cells.items() if has_tail(cell)}
    return {
        title: {
            method: score
            for method in next(iter(found.values()))
            if (score := mean_score(method, found, "balanced_accuracy")) is not None
        }
        for title, found in by_kind(tailed).items()
    }


def by_kind(cells: Mapping[str, Cell]) -> dict[str, dict[str, Cell]]:
    """Return the cells by the titles of their kinds; kinds that were not run are left out."""
    kinds = {
        title: {name: cell for name, cell in cells.items() if name.startswith(key)}
        for key, title in KINDS.items()
    }
    return {title: found for title, found in kinds.items() if found}


def mean_score(
    method: str, cells: Mapping[str, Cell], key: str, when: str = "kept"
) -> float | None:
    """Return the mean over cells and seeds; nothing if a cell lacks the method or the score."""
    if not all(method in cell for cell in cells.values()):
        return None
    seeds = [[v for v in cell[method][when][key] if v is not None] for cell in cells.values()]
    return fmean(fmean(values) for values in seeds) if all(seeds) else None


def needs_server_data(method: str) -> bool:
    """Whether the server must have samples of its own, which no other method is given."""
    return Method.registry[split_spec(method)[0]].server_data != "none"


def is_bound(method: str) -> bool:
    """Whether all data are in one place: a bound to compare with, and not one of those compared."""
    return Method.registry[split_spec(method)[0]].pooled


def marked(method: str) -> str:
    """Return a method for a table, with a mark if it is given more than others."""
    if is_bound(method):
        return f"`{method}` (all data in one place)"
    return f"`{method}`" + (" (samples on the server)" if needs_server_data(method) else "")


def filled(page: str, table: str, marks: tuple[str, str] = MARKS) -> str:
    """Return a page with the table between its marks."""
    begin, end = marks
    before, rest = page.split(begin, 1)
    return f"{before}{begin}\n{table}\n\n{end}{rest.split(end, 1)[1]}"


def _mean(method: str, cells: Mapping[str, Cell]) -> str:
    scores = [mean_score(method, cells, key) for key in ("balanced_accuracy", "few")]
    return " / ".join(f"{100 * score:.1f}" for score in scores if score is not None)


def has_tail(cell: Cell) -> bool:
    """Whether there are rare classes to score: speakers say all words about as often."""
    return any(value is not None for entry in cell.values() for value in entry["kept"]["few"])


def _above(method: str, kinds: Mapping[str, Mapping[str, Cell]]) -> tuple[float, int]:
    """Return the mean difference over the method's cells with a tail, and their number."""
    found = [
        fmean(cell[method]["kept"]["balanced_accuracy"])
        - fmean(cell["fedavg"]["kept"]["balanced_accuracy"])
        for cells in kinds.values()
        for cell in cells.values()
        if method in cell and "fedavg" in cell and has_tail(cell)
    ]
    return (fmean(found) if found else 0.0), len(found)
