"""`fedtail reproduce`: a paper's table, run and set beside the printed values."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table as Grid

from fedtail.cli.compare import folder_for_runs
from fedtail.cli.options import EXPERIMENT, OUTPUT
from fedtail.cli.specs import folder_name
from fedtail.cli.tables import make_console
from fedtail.errors import FedtailError
from fedtail.signals import ended_by_signals, exit_code

if TYPE_CHECKING:
    from fedtail.reproduce.compared import Compared
    from fedtail.reproduce.cost import Cost
    from fedtail.reproduce.measures import Finished
    from fedtail.reproduce.recipe import Cell, Scale, Table

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
) -> None:
    """Run a table of a paper, and set our numbers beside the printed ones.

    Cells run one after the other. The same command again skips finished runs and
    goes on with an interrupted one; a cell that fails does not stop the others.
    The result is also in results.json, results.csv and results.md.
    """
    from fedtail.reproduce.recipe import load_recipe
    from fedtail.reproduce.results import write_results

    console = make_console()
    if list_all or table is None:
        show_list(console, scale)
        return
    chosen = load_recipe(table)
    cells = select(chosen, only or [], method or [])
    check_data(chosen, cells, scale)
    runs = seeds or chosen.seeds(scale)
    folder = out or Path("runs") / f"{table}-{scale}"
    with folder_for_runs(folder):
        try:
            with ended_by_signals():
                lines = carry_out(chosen, cells, scale, runs, folder, console)
        except KeyboardInterrupt as stop:
            console.print("interrupted; the same command goes on from here")
            raise typer.Exit(exit_code(stop)) from None
        write_results(folder, chosen, scale, lines)
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


def carry_out(
    table: Table,
    cells: Sequence[Cell],
    scale: Scale,
    seeds: int,
    folder: Path,
    console: Console,
) -> list[Compared]:
    """Do what is left of every cell; what fails is noted, and the next one is begun."""
    from fedtail.reproduce.compared import compare_cell
    from fedtail.reproduce.recipe import Cell

    lines: list[Compared] = []
    for cell in cells:
        why = table.not_run(cell)
        if why:
            lines += compare_cell(table, cell, [], failures=[f"not run: {why}"])
            continue
        runs, failures = run_cell(table, cell, scale, seeds, folder, console)
        others: list[Finished] = []
        minus = list(table.meanings(cell))[-1].minus
        if minus:
            base = Cell(cell.dataset, cell.setting, minus)
            others, more = run_cell(table, base, scale, seeds, folder, console)
            failures += more
        lines += compare_cell(table, cell, runs, others, failures)
    return lines


def run_cell(
    table: Table, cell: Cell, scale: Scale, seeds: int, folder: Path, console: Console
) -> tuple[list[Finished], list[str]]:
    """Return the finished runs of a cell, and why others are missing."""
    from fedtail.cli.settle import reason, settle
    from fedtail.reproduce.measures import Finished

    runs, failures = [], []
    for seed in range(seeds):
        experiment = table.experiment(cell, scale, seed)
        try:
            history = settle(experiment, folder / folder_name(str(cell), seed), console)
            runs.append(Finished(experiment, history))
        except Exception as error:
            failures.append(f"seed {seed}: {reason(error)}")
            console.print(f"{cell} {failures[-1]}", style="red", soft_wrap=True, markup=False)
    return runs, failures


def show_list(console: Console, scale: Scale) -> None:
    """Print every table with its size and cost."""
    from fedtail.reproduce.cost import cost
    from fedtail.reproduce.recipe import load_recipe, recipes

    grid = Grid(box=None, pad_edge=False, header_style="bold")
    for heading in ("table", "what it shows"):
        grid.add_column(heading, overflow="fold")
    for heading in ("runs", "samples", "hours", "GPU"):
        grid.add_column(heading, justify="right", no_wrap=True)
    for name in recipes():
        table = load_recipe(name)
        grid.add_row(name, table.recipe.title, *_cost_cells(cost(table, scale)))
    console.print(grid)
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
    for group, (headings, *rows) in by_setting(lines).items():
        console.print(f"\n{group}", markup=False, soft_wrap=True, highlight=False)
        grid = Grid(box=None, pad_edge=False, header_style="bold")
        for number, heading in enumerate(headings):
            grid.add_column(heading, overflow="fold", justify="left" if number < 2 else "right")
        for row in rows:
            grid.add_row(*row)
        console.print(grid)
    for failure in dict.fromkeys(f"{line.cell}: {why}" for line in lines for why in line.failures):
        console.print(failure, style="dim", soft_wrap=True, markup=False)
