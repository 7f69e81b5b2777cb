"""`fedtail compare`: several methods, several seeds, one protocol, one table."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedtail.cli.options import (
    EXPERIMENT,
    OUTPUT,
    Plugins,
    TrustPlugins,
    Words,
    known,
    with_flags,
)
from fedtail.cli.results import Line, write_results
from fedtail.cli.specs import folder_name, split_spec
from fedtail.cli.tables import make_console, show_lines
from fedtail.errors import FedtailError
from fedtail.files import make_folder
from fedtail.signals import ended_by_signals, exit_code

if TYPE_CHECKING:
    from fedtail.experiment import Experiment

    Plan = dict[str, dict[int, Experiment]]

EXAMPLES = """Examples:

fedtail compare --method fedavg --method fedavg,local.lr=0.1 --seeds 3

fedtail compare a.toml --method fedavg --method fedavg,sampler=class_balanced
"""


@with_flags("method", "seed")
def compare(
    flags: dict[str, Any],
    words: Words = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            metavar="NAME[,FIELD=VALUE]...",
            help="a method, perhaps with fields of its own; repeat the flag for more",
            rich_help_panel=EXPERIMENT,
            show_default=False,
            autocompletion=known("method"),
        ),
    ] = None,
    seeds: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="runs of each method, each with a seed of its own (default 1)",
            rich_help_panel=EXPERIMENT,
            show_default=False,
        ),
    ] = 1,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="where all runs and the table go (default runs/compare)",
            rich_help_panel=OUTPUT,
            show_default=False,
        ),
    ] = Path("runs/compare"),
    plugin: Plugins = None,
    trust_plugins: TrustPlugins = False,
) -> None:
    """Compare methods under one protocol, over several seeds.

    The same command again goes on with a comparison: finished runs are not run
    again, an interrupted one goes on where it stopped. One that fails does not
    stop the others. The table is also in comparison.json and comparison.csv,
    and report.html shows the runs.
    """
    from fedtail.cli.describe import described
    from fedtail.report.document import leave_report

    if seeds < 1:
        raise FedtailError(f"--seeds {seeds} is refused: give at least 1")
    if not methods:
        raise FedtailError("name at least one method to compare: --method fedavg --method ...")
    plan = make_plan(described(words, flags, plugin, trust_plugins), methods, seeds)
    console = make_console()
    with folder_for_runs(out):
        try:
            with ended_by_signals():
                lines = carry_out(plan, out, console)
        except KeyboardInterrupt as stop:
            console.print("interrupted; the same command goes on from here")
            raise typer.Exit(exit_code(stop)) from None
        write_results(out, lines)
        leave_report(out)
    show_lines(console, lines)
    console.print(str(out), soft_wrap=True, highlight=False, markup=False)
    if any(line.failures for line in lines):
        raise typer.Exit(1)


def make_plan(plain: dict[str, Any], methods: list[str], seeds: int) -> Plan:
    """Return every experiment by method and seed, all checked before the first one runs."""
    first = plain.get("seed", 0)
    if not isinstance(first, int):
        raise FedtailError(f"'seed' = {first!r} is refused: give a whole number")
    specs = dict.fromkeys(",".join(split_spec(method)) for method in methods)
    return {
        spec: {seed: variant(plain, spec, seed) for seed in range(first, first + seeds)}
        for spec in specs
    }


def variant(plain: dict[str, Any], spec: str, seed: int) -> Experiment:
    """Return the experiment with another method and seed."""
    from fedtail.cli.describe import apply
    from fedtail.experiment import make_experiment, parse_overrides

    name, *fields = split_spec(spec)
    changed = {**plain, "seed": seed, "name": f"{spec} seed {seed}"}
    apply(changed, "method", name)
    for path, value in parse_overrides(fields):
        apply(changed, f"method.{path}", value)
    try:
        return make_experiment(changed)
    except FedtailError as error:
        raise FedtailError(f"--method {spec}: {error}") from None


@contextlib.contextmanager
def folder_for_runs(out: Path) -> Iterator[None]:
    """Make the folder first, so that a wrong one is found early; leave no empty one behind."""
    make_folder(out)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            out.rmdir()


def carry_out(plan: Plan, out: Path, console: Console) -> list[Line]:
    """Do what is left of every run; what fails is noted, and the next one is begun."""
    from fedtail.cli.settle import reason, settle

    lines = [
        Line(spec, server_data=next(iter(seeds.values())).server_data)
        for spec, seeds in plan.items()
    ]
    refusals: set[str] = set()
    for line in lines:
        for seed, experiment in plan[line.spec].items():
            try:
                path = out / folder_name(line.spec, seed)
                line.histories[seed] = settle(experiment, path, console)
            except Exception as error:
                line.failures[seed] = reason(error)
                if isinstance(error, FedtailError):
                    refusals.add(str(error))
                message = f"{experiment.title} failed: {line.failures[seed]}"
                console.print(message, style="red", soft_wrap=True, markup=False)
    if len(refusals) == 1 and not any(line.histories for line in lines):
        # What every run refuses is wrong input to the command itself.
        raise FedtailError(refusals.pop())
    return lines
