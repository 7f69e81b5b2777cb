"""The picture of the README: accuracy of each class, from frequent to rare, on real data.

It is drawn from the committed results of `benchmarks/real`; nothing is trained.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.figures.common import new_figure, save_picture
from benchmarks.results_file import RESULTS

METHODS = {"fedavg": ("FedAvg", "0.4"), "creff": ("CReFF", "tab:orange")}
METHODS |= {"balancefl": ("BalanceFL", "tab:blue")}
GARMENTS = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker")
PANELS = {
    "mnist": ("MNIST-LT", tuple(map(str, range(10)))),
    "fashion_mnist": ("Fashion-MNIST-LT", (*GARMENTS, "bag", "boot")),
}
"""Result file, title and class names; the tail is cut in the order of the classes."""
IMBALANCE = 100
"""Of both protocols: n_c = n_0 · 100^(-c / 9)."""


def by_class(name: str) -> dict[str, list[float]]:
    """Return the mean accuracy of each class over seeds, in percent, by method."""
    found = json.loads((RESULTS / "real" / f"{name}.json").read_text(encoding="utf-8"))
    rows = {row["method"]: row["per_class"] for row in found["methods"]}
    return {method: [100 * share for share in rows[method]] for method in METHODS}


def draw() -> Figure:
    """Draw a panel a data set, with the samples of each class as grey bars behind."""
    figure = new_figure(9.2, 3.5)
    panels = figure.subplots(1, len(PANELS), sharey=True)
    for axes, (name, (title, classes)) in zip(panels, PANELS.items(), strict=True):
        _panel(axes, by_class(name), classes)
        axes.set_title(title)
    panels[0].set_ylabel("accuracy in percent")
    panels[0].legend(loc="lower left", fontsize=8)
    return figure


def _panel(axes: Axes, values: dict[str, list[float]], classes: tuple[str, ...]) -> None:
    last = len(classes) - 1
    # On a log scale an exponential tail is a straight line, from all of the height to a third.
    heights = [100 - 200 / 3 * place / last for place in range(len(classes))]
    axes.bar(range(len(classes)), heights, color="0.92", width=0.85, zorder=0)
    for method, (label, colour) in METHODS.items():
        axes.plot(values[method], marker="o", color=colour, label=label)
    axes.set_xticks(range(len(classes)), classes, rotation=45 if len(classes[0]) > 1 else 0)
    axes.set_xlabel(f"class, from frequent to rare ({IMBALANCE} : 1)")
    axes.set_ylim(-3, 103)
    axes.spines[["top", "right"]].set_visible(False)


def main(words: Sequence[str] | None = None) -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder of the picture; by default the repository")
    save_picture("rare_classes", draw(), parser.parse_args(words).out)


if __name__ == "__main__":
    main()
