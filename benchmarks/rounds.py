"""Whether a few held-out people choose a better round than the last: real clients, tuned methods.

    FEDTAIL_DATA=FOLDER python -m benchmarks.rounds

Runs of the comparison (its result files have the values) once more, tested at every validation.
Balanced accuracy on the test set in percent, by method: of the round with the best validation, of
that with the best mean of three validations in a row, of the last one, and the best there was.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.comparison.plan import PROTOCOLS, known
from benchmarks.results_file import RESULTS, save
from fedtail.described import load_experiment, make_experiment
from fedtail.study.study import compare

ASKED = {
    "r_mitbih": ("fedavg", "bsm", "lade", "slac", "fedetf"),
    "r_hapt": ("fedavg", "bsm", "balancefl", "slac"),
}
SEEDS = range(1, 6)
IN_A_ROW = 3


def main() -> None:
    """Do what is left of the runs, and write what each rule would have shipped."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--runs", type=Path, default=Path("runs/rounds"), help="all runs")
    arguments = parser.parse_args()
    save("rounds", {cell: of(cell, arguments.runs / cell) for cell in ASKED})


def of(cell: str, runs: Path) -> dict[str, dict[str, float]]:
    """Return what each rule ships, by method, means over seeds."""
    experiment = make_experiment({**load_experiment(PROTOCOLS / f"{cell}.toml"), "test": "every"})
    found = {}
    for method in ASKED[cell]:
        words = known(RESULTS / "comparison" / f"{cell}.json")[method]["words"]
        study = compare(experiment, {"method": [words]}, seeds=SEEDS, out=runs / method, jobs=1)
        every = [shipped(run.records) for run in study.lines[0].runs]
        found[method] = {rule: round(100 * fmean(e[rule] for e in every), 2) for rule in every[0]}
    return found


def shipped(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the test score of the round that each rule takes; the first, if several are equal."""
    validated = [record for record in records if record.get("validation")]
    held = [record["validation"]["balanced_accuracy"] for record in validated]
    test = [record["balanced_accuracy"] for record in validated]
    smooth = [fmean(held[at - IN_A_ROW : at]) for at in range(IN_A_ROW, len(held) + 1)]
    return {
        "best": test[held.index(max(held))],
        "best of three in a row": test[smooth.index(max(smooth)) + IN_A_ROW - 1],
        "last": test[-1],
        "there was": max(test),
    }


if __name__ == "__main__":
    main()
