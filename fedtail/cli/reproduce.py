"""`fedtail reproduce`: a paper's table, run and set beside the printed values."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from fedtail.cli.compare import interruptible
from fedtail.cli.options import EXPERIMENT, OUTPUT, JobCount
from fedtail.cli.tables import make_console
from fedtail.errors import FedtailError
from fedtail.study.grid import Row, grid

if TYPE_CHECKING:
    from fedtail.reproduce.compared import Compared
    from fedtail.reproduce.cost import Cost
    from fedtail.reproduce.recipe import Cell, Scale, Table
    from fedtail.study.plan import Planned

EXAMPLES = """Examples:

fedtail reproduce --list

fedtail reproduce creff/table1 --only "CIFAR-10-LT*IF=100" --method FedAvg --method CReFF
"""


def reproduce(
    table: Annotated[
        str | None,
        typer.Argument(
            metavar="[PAPER/TABLE]", help="which table, such as creff/table1", show_default=False
        ),
    ] = None,
    list_all: Annotated[
        bool, typer.Option("--list", help="show all tables and what they cost")
    ] = False,
    scale: Annotated[
        Literal["full", "reduced", "smoke"],
        typer.Option(
            metavar="SCALE",
            help="full: as in the paper; reduced: what two cores can do; smoke: seconds, "
            "on tiny data, to see that it works (default reduced)",
            rich_help_panel=EXPERIMENT,
            show_default=False,
        ),
    ] = "reduced",
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="only cells whose data set, setting and method hold this text (* stands for "
            "anything); repeat the flag for cells that hold any of them",
            rich_help_panel=EXPERIMENT,
            show_default=False,
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="only this method, by its name in the table; may be repeated",
            rich_help_panel=EXPERIMENT,
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="runs of each cell (default: as the table says)",
            rich_help_panel=EXPERIMENT,
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="where runs and results go (default runs/PAPER/TABLE-SCALE)",
            rich_help_panel=OUTPUT,
            show_default=False,
        ),
    ] = None,
    jobs: JobCount = "auto",
) -> None:
    """Run a table of a paper, and set our numbers beside the printed ones.

    The same command again skips finished runs and goes on with an interrupted one;
    a cell that fails does not stop the others.
    The result is also in results.json, results.csv and results.md.
    """
    from fedtail.reproduce.recipe import load_recipe
    from fedtail.reproduce.results import write_tables
    from fedtail.study.perform import perform, read_jobs
    from fedtail.study.study import folder_for_runs

    console = make_console()
    if list_all or table is None:
        show_list(console, scale)
        return
    at_once = read_jobs(jobs)
    chosen = load_recipe(table)
    cells = select(chosen, only or [], method or [])
    check_data(chosen, cells, scale)
    runs = seeds or chosen.seeds(scale)
    folder = out or Path("runs") / f"{table}-{scale}"
    plans = planned_cells(chosen, cells, scale, runs, folder)
    plan = {planned.path: planned for each in plans.values() for planned in each}
    with folder_for_runs(folder), interruptible(console):
        with closing(perform(list(plan.values()), at_once, console)) as ended:
            failed = {planned.path: end for planned, end in ended if end.failure}
        failures = {path: end.failure for path, end in failed.items()}
        if plan and all(path in failed and failed[path].refused for path in plan):
            # There is nothing new: the results of before stay as they are.
            raise FedtailError(next(iter(failures.values())))
        lines = compare_cells(chosen, cells, plans, failures)
        write_tables(folder, chosen, scale, lines)
    show_result(console, chosen, scale, lines)
    console.print(str(folder), soft_wrap=True, highlight=False, markup=False)
    if any(line.failures and not chosen.not_run(line.cell) for line in lines):
        raise typer.Exit(1)


def select(table: Table, only: Sequence[str], methods: Sequence[str]) -> list[Cell]:
    """Return the cells of these methods that hold one of the texts; an empty list asks nothing."""
    known = list(dict.fromkeys(cell.method for cell in table.cells))
    for name in methods:
        if name not in known:
            raise FedtailError(f"{table.name} has no method '{name}' (known: {', '.join(known)})")
    cells = [
        cell
        for cell in table.cells
        if (not methods or cell.method in methods)
        and (not only or any(fnmatch.fnmatchcase(str(cell), f"*{text}*") for text in only))
    ]
    if not cells:
        raise FedtailError(
            f"no cell of {table.name} holds {' or '.join(repr(text) for text in only)}"
            f"{' with the method ' + ' or '.join(methods) if methods else ''}; "
            f"the first is '{table.cells[0]}'"
        )
    return cells


def check_data(table: Table, cells: Sequence[Cell], scale: Scale) -> None:
    """Refuse a table whose data is not here, with the command that gets it."""
    for cell in cells:
        if table.not_run(cell):
            continue
        source = table.experiment(cell, scale, seed=0).data
        if type(source).located() is None:
            raise FedtailError(
                f"{table.name} needs the data '{source.name}', which is not here: "
                f"{type(source).advice()}"
            )


def planned_cells(
    table: Table, cells: Sequence[Cell], scale: Scale, seeds: int, folder: Path
) -> dict[str, list[Planned]]:
    """Return the runs of each cell, and of the cells that these are compared with."""
    from fedtail.study.plan import make_plan

    wanted = [cell for cell in cells if not table.not_run(cell)]
    wanted += [base for cell in wanted if (base := table.base(cell))]
    return {
        str(cell): make_plan(
            {str(cell): partial(table.experiment, cell, scale)}, range(seeds), folder
        )
        for cell in wanted
    }


def compare_cells(
    table: Table,
    cells: Sequence[Cell],
    plans: Mapping[str, Sequence[Planned]],
    failures: Mapping[Path, str],
) -> list[Compared]:
    """Set what the runs gave beside the printed numbers; what failed is noted."""
    from fedtail.callbacks import read_records
    from fedtail.folder import RunFolder
    from fedtail.reproduce.compared import compare_cell
    from fedtail.reproduce.measures import Finished

    lines: list[Compared] = []
    for cell in cells:
        why = table.not_run(cell)
        if why:
            lines += compare_cell(table, cell, [], failures=[f"not run: {why}"])
            continue
        base = table.base(cell)
        ours, others = plans[str(cell)], plans[str(base)] if base else []
        failed = [planned for planned in (*ours, *others) if planned.path in failures]
        missing = {planned.seed for planned in failed}
        runs, bases = (
            [
                Finished(planned.experiment, read_records(RunFolder(planned.path).metrics))
                for planned in plan
                if planned.seed not in missing
            ]
            for plan in (ours, others)
        )
        said = [f"seed {planned.seed}: {failures[planned.path]}" for planned in failed]
        lines += compare_cell(table, cell, runs, bases, said)
    return lines


def show_list(console: Console, scale: Scale) -> None:
    """Print every table with its size and cost."""
    from fedtail.reproduce.cost import cost
    from fedtail.reproduce.recipe import load_recipe, recipes

    headings = ("table", "runs", "samples", "hours", "GPU")
    rows = []
    for name in recipes():
        table = load_recipe(name)
        rows.append(Row(name, _cost_cells(cost(table, scale)), [(table.recipe.title, "dim")]))
    console.print(grid(headings, rows, console.width), end="")
    speed = "hours of one core, at the speed measured for each network"
    console.print(f"scale {scale}; {speed}", style="dim")


def by_setting(lines: Sequence[Compared]) -> dict[str, list[list[str]]]:
    """Return headings and rows for each data set and setting, without these two columns."""
    from fedtail.reproduce.results import as_rows

    headings, *rows = as_rows(lines)
    groups: dict[str, list[list[str]]] = {}
    for row in rows:
        groups.setdefault(f"{row[0]}, {row[1]}", [headings[2:]]).append(row[2:])
    return groups


def _cost_cells(took: Cost) -> list[str]:
    hours = "?" if took.hours is None else f"{took.hours:,.1f}"
    return [f"{took.runs:,}", f"{took.samples:.1e}", hours, "advised" if took.gpu else "no"]


def show_result(console: Console, table: Table, scale: Scale, lines: Sequence[Compared]) -> None:
    """Print the paper's values and ours."""
    title = f"{table.recipe.where}: {table.recipe.title} (scale {scale})"
    console.print(title, style="bold", markup=False)
    if scale != "full":
        console.print(table.recipe.scale_is(scale), style="dim", markup=False, highlight=False)
    for group, (headings, *rows) in by_setting(lines).items():
        console.print(f"\n{group}", markup=False, soft_wrap=True, highlight=False)
        cells = [Row(name, rest) for name, *rest in rows]
        console.print(grid(headings, cells, console.width, left=1), end="")
    for failure in dict.fromkeys(f"{line.cell}: {why}" for line in lines for why in line.failures):
        console.print(failure, style="dim", soft_wrap=True, markup=False)
