"""What the draws of trials change: results of random ones beside those of even ones."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from scipy.stats import spearmanr

from benchmarks.comparison.gather import DRAWS
from benchmarks.comparison.overview import Cell

FEWEST = 3
"""Methods that a cell needs, for its order to mean anything."""
SAID = """## What the draws of trials change

Some cells were run twice: with random trials, each method's own, and with trials that are spread
evenly, at the same rates for all (`benchmarks/protocols/README.md` says why). Balanced accuracy, of
the methods that have both: how far it moved, in points, which moved most, and how much of the order
stayed (Spearman's rank correlation).
"""


def text(before: Mapping[str, Cell], cells: Mapping[str, Cell]) -> str:
    """Return the part of the page; nothing until a cell has been run twice.

    Parameters
    ----------
    before, cells
        Results of random trials, and those of today.
    """
    found = {name: moves(old, cells.get(name, {})) for name, old in before.items()}
    rows = [row(name, moved) for name, moved in found.items() if len(moved) >= FEWEST]
    if not rows:
        return ""
    heads = "| cell | methods | mean move | mean of absolute moves | most up | most down | order |"
    return "\n".join([SAID, heads, "|---" * 7 + "|", *rows, ""])


def moves(before: Cell, now: Cell) -> dict[str, tuple[float, float]]:
    """Return the percent of random and of even trials, by method that has both."""
    both = [m for m, entry in now.items() if entry.get("draws") == DRAWS and m in before]
    return {m: (_score(before, m), _score(now, m)) for m in both}


def row(name: str, moved: Mapping[str, tuple[float, float]]) -> str:
    """Return the line of one cell."""
    by = {method: now - old for method, (old, now) in moved.items()}
    up, down = max(by, key=lambda m: by[m]), min(by, key=lambda m: by[m])
    order = float(spearmanr(*zip(*moved.values(), strict=True)).statistic)
    return (
        f"| {name.partition('_')[2].replace('_', ' ')} | {len(by)} | {fmean(by.values()):+.1f} | "
        f"{fmean(map(abs, by.values())):.1f} | `{up}` {by[up]:+.1f} | `{down}` {by[down]:+.1f} | "
        f"{order:.2f} |"
    )


def _score(cell: Cell, method: str) -> float:
    return 100 * fmean(cell[method]["kept"]["balanced_accuracy"])
