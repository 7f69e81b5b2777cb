"""Run cells of the comparison: tune each method on seed 0, then run what was found on other seeds.

python -m benchmarks.features cifar10 cifar100 --out FOLDER
FEDTAIL_DATA=FOLDER python -m benchmarks.comparison f_cifar10_if100_dir0.1 --method fedavg
FEDTAIL_DATA=FOLDER python -m benchmarks.comparison --left

Started again it goes on. After each method its cell's file in `results/comparison` is written.
Several may run side by side: what one has begun, the others pass over.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.comparison.gather import entry, protocol_of
from benchmarks.comparison.overview import needs_server_data
from benchmarks.comparison.plan import PROTOCOLS, cells, known, missing, planned, trials_of
from benchmarks.results_file import RESULTS, readable
from fedtail.described import load_experiment, make_experiment
from fedtail.errors import FedtailError
from fedtail.files import write_atomic
from fedtail.lock import locked
from fedtail.methods import Method
from fedtail.study.spec import safe_name, split_spec
from fedtail.study.study import compare
from fedtail.study.tune import Found, tune

SEEDS = {"f": 5, "p": 5, "s": 3, "c": 2, "r": 5, "n": 3}
RANGES = {
    "closed-form,head=ridge": {"method.head.rho": "0.03..30:log"},
    "closed-form,head=lda": {"method.head.shrinkage": "0.01..1:log"},
}
"""Fields that only one choice of a part has, and that `fedtail/study/space.py` cannot name."""
SERVER_PER_CLASS = 32
"""Samples on the server, for the methods that need some; pages mark these."""
SMALLER = {
    ("f_cifar100", "ccvr"): "ccvr,covariance=diagonal",
    ("f_cifar100", "creff"): "creff,features=10,match_steps=20,head_epochs=60",
}
"""What is run instead, by the beginning of a cell's name: the default sends above the limit of
traffic (CCVR, 100 covariances of 1,280²), or takes 37 minutes of processor time a run (CReFF)."""


def main() -> None:
    """Read the arguments, and do what is left of each cell."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("cell", nargs="*", help="files of protocols/, such as r_hapt")
    parser.add_argument("--method", action="append", help="as typed for compare; repeat the flag")
    parser.add_argument("--left", action="store_true", help="what is planned and has no result")
    parser.add_argument("--list", action="store_true", help="only say what would be done")
    parser.add_argument("--runs", type=Path, default=Path("runs/comparison"), help="all runs")
    parser.add_argument("--to", type=Path, default=RESULTS / "comparison", help="result files")
    arguments = parser.parse_args()
    if not arguments.cell and not arguments.left:
        parser.error("name a cell, or --left for what is planned and has no result")
    if unknown := set(arguments.cell) - set(cells()):
        parser.error(f"no such cell: {', '.join(sorted(unknown))}; there are {', '.join(cells())}")
    methods = {split_spec(method)[0] for method in arguments.method or []}
    if unknown := methods - set(Method.registry):
        parser.error(f"no such method: {', '.join(sorted(unknown))}")
    for cell, method in chosen(arguments.cell, arguments.method, arguments.left, arguments.to):
        if arguments.list:
            print(f"{cell} {method}")
        else:
            do(cell, method, arguments.runs / cell / safe_name(method), arguments.to)


def chosen(
    named: Sequence[str], methods: Sequence[str] | None, left: bool, to: Path
) -> list[tuple[str, str]]:
    """Return cells with their methods; `left`: only those without a result, and of any cell."""
    if not left:
        return [(cell, method) for cell in named for method in methods or planned(cell)]
    return [
        (cell, method)
        for cell, method in missing(to)
        if cell in (named or [cell]) and method in (methods or [method])
    ]


def do(cell: str, method: str, folder: Path, to: Path) -> None:
    """Measure one method in one cell and keep it, if no other process is at it; say what became."""
    try:
        with locked(folder):
            found = measured(cell, method, folder)
    except FedtailError as error:
        print(f"{cell} {method}: {error}", flush=True)
        return
    keep(to / f"{cell}.json", method, found)
    print(f"{cell} {found['words']}", flush=True)


def typed(cell: str, method: str) -> str:
    """Return the method as it is run in a cell."""
    return SMALLER.get((cell.partition("_if")[0], method), method)


def measured(cell: str, asked: str, folder: Path) -> dict[str, Any]:
    """Tune one method on seed 0 of a cell, and run the best values on the seeds that count."""
    method = typed(cell, asked)
    described = load_experiment(PROTOCOLS / f"{cell}.toml")
    # Gradients of a hundred classes make checkpoints of 50 MB, and a lost run is a minute. Tests of
    # every validated round took 30 % of FedAvg's time on S, and 16 % on MIT-BIH.
    fields = {"checkpoint_every": described["eval_every"], "test": "best"}
    if needs_server_data(method):
        fields["server_per_class"] = SERVER_PER_CLASS
    experiment = make_experiment({**described, **fields})
    tuned = Found(method, method, None, 0, 0, 0)
    if trials := trials_of(cell, asked):
        ranges, out = RANGES.get(method, {}), folder / "tune"
        tuned = tune(experiment, [method], trials=trials, ranges=ranges, out=out, jobs=1).found[0]
        if tuned.score is None:
            raise FedtailError("no trial came to its end")
    seeds = range(1, 1 + SEEDS[protocol_of(cell)])
    choices = {"method": [tuned.words]}
    study = compare(experiment, choices, seeds=seeds, out=folder / "seeds", jobs=1)
    return entry(tuned, study)


def keep(path: Path, method: str, found: dict[str, Any]) -> None:
    """Add a method to the file of a cell, or replace it."""
    command = f"python -m benchmarks.comparison {path.stem} --method {method}"
    with locked(path.parent, wait=True):
        all_of_them = {**known(path), method: {**found, "command": command}}
        write_atomic(path, readable(all_of_them) + "\n")


if __name__ == "__main__":
    main()
