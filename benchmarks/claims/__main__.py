"""Run the papers' claims at the reduced scale, and keep what they gave in `results/reproduce`.

python -m benchmarks.claims --only CReFF --precision bfloat16 --runs FOLDER

Started again it goes on. What several tables share, such as FedAvg, is run once.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from benchmarks.claims.verdict import RUNS, Claim, claims
from benchmarks.results_file import readable
from fedtail.cli.reproduce import compare_cells
from fedtail.device import PRECISIONS
from fedtail.errors import FedtailError
from fedtail.experiment import Experiment
from fedtail.files import write_atomic
from fedtail.folder import FREE, environment
from fedtail.lock import locked
from fedtail.reproduce.recipe import Cell, Scale, Table
from fedtail.reproduce.results import as_plain
from fedtail.study.perform import JobNumber, perform
from fedtail.study.plan import Planned, make_plan
from fedtail.study.runs import read_run

TESTS = 2
"""Whose mean is a run's score: one round's alone says more of the round than of the method."""


def main() -> None:
    """Read the arguments, and do what is left of each claim."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", action="append", help="claims whose paper or sentence holds this")
    parser.add_argument("--runs", type=Path, default=Path("runs/claims"), help="all runs")
    parser.add_argument("--precision", choices=PRECISIONS, default="float32", help="of training")
    parser.add_argument("--to", type=Path, default=RUNS, help="result files")
    arguments = parser.parse_args()
    chosen = {
        text: [claim for claim in claims() if text in str(claim) and not claim.not_testable]
        for text in arguments.only or [""]
    }
    if unknown := [text for text, found in chosen.items() if not found]:
        parser.error(f"no claim that can be tested holds {' or '.join(map(repr, unknown))}")
    for claim in dict.fromkeys(claim for found in chosen.values() for claim in found):
        try:
            done(claim, "reduced", arguments.runs, arguments.to, precision=arguments.precision)
            print(claim, flush=True)
        except FedtailError as error:
            print(f"{claim} {error}", flush=True)


def done(
    claim: Claim,
    scale: Scale,
    runs: Path,
    to: Path,
    jobs: JobNumber = 1,
    precision: str = "float32",
) -> None:
    """Do what is left of a claim's runs, and add what they gave to the file of its table."""
    table = claim.recipe()
    cells = [claim.cell(table, method) for method in (claim.method, claim.beside)]
    table = late(table, table.experiment(cells[0], scale, seed=0).eval_every)
    plans = {str(cell): planned(table, cell, scale, runs, precision) for cell in cells}
    plan = [each for mine in plans.values() for each in mine]
    with closing(perform(plan, jobs)) as ended:
        failures = {str(each): end.failure for each, end in ended if end.failure}
    if failures:  # values are paired by their place, so there has to be one of each seed
        said = "; ".join(f"{label}: {why}" for label, why in failures.items())
        raise FedtailError(f"Nothing is kept of it, because runs failed: {said}")
    found = as_plain(table, scale, compare_cells(table, cells, plans, {}))
    found["scale_is"] = f"{found['scale_is']}, in {precision}, mean of the last {TESTS} tests"
    command = f"python -m benchmarks.claims --only {quote(claim.says)} --precision {precision}"
    found["environment"] = {**environment(), "command": command}
    keep(to / f"{table.name.replace('/', '_')}.json", found, commits(plan))


def late(table: Table, every: int) -> Table:
    """Return a table whose scores are means over the last tests, where it has them of fewer.

    In the last round alone FedAvg had 29, 28 and 18 percent on three seeds, and 22, 27 and 28 ten
    rounds before.
    """
    metric = {
        name: how.but(last=max(how.last, TESTS * every))
        for name, how in table.recipe.metric.items()
    }
    return replace(table, recipe=table.recipe.but(metric=metric))


def planned(
    table: Table, cell: Cell, scale: Scale, runs: Path, precision: str = "float32"
) -> list[Planned]:
    """Return the runs of a cell; those of another table that are the same have the same folder."""

    def of(seed: int) -> Experiment:
        return table.experiment(cell, scale, seed).but(precision=precision)

    described = of(0).describe()
    deciding = {key: value for key, value in described.items() if key not in FREE}
    same = hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()[:12]
    seeds = range(table.seeds(scale))
    return [
        Planned(each.label, each.seed, each.experiment, runs / f"{same}-{each.seed}")
        for each in make_plan({str(cell): of}, seeds, runs)
    ]


def commits(plan: Sequence[Planned]) -> list[str]:
    """Return the commits that runs were made with."""
    facts = [read_run(each.path).environment or {} for each in plan if each.path.exists()]
    return sorted({str(each.get("commit")) for each in facts})


def keep(path: Path, found: Mapping[str, Any], made_with: Sequence[str]) -> None:
    """Write the numbers of some cells; others of the same scale that the file has stay in it."""
    key = ("dataset", "setting", "method", "metric")
    with locked(path.parent, wait=True):
        old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        stays = old if old.get("scale_is") == found["scale_is"] else {}
        numbers = {
            tuple(number[name] for name in key): number
            for number in (*stays.get("numbers", ()), *found["numbers"])
        }
        together = {
            **found,
            "commits": sorted({*stays.get("commits", ()), *made_with}),
            "numbers": list(numbers.values()),
        }
        write_atomic(path, readable(together) + "\n")


if __name__ == "__main__":
    main()
