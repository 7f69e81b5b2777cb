"""`fedtail compare`: several methods, several seeds, one protocol, one table."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedtail.cli.options import (
    EXPERIMENT,
    OUTPUT,
    Grids,
    JobCount,
    Plugins,
    TrustPlugins,
    Words,
    known,
    with_flags,
)
from fedtail.cli.tables import make_console
from fedtail.errors import FedtailError
from fedtail.signals import ended_by_signals, exit_code

if TYPE_CHECKING:
    from fedtail.experiment import Experiment

    Plan = dict[str, dict[int, Experiment]]

EXAMPLES = """Examples:

fedtail compare --method fedavg --method fedavg,local.lr=0.1 --seeds 3

fedtail compare a.toml --method fedavg --method fedavg,sampler=class_balanced

fedtail compare --method fedlc --grid tau=0.5,1,2 --grid local.lr=0.1,0.01
"""


@with_flags("method", "seed")
def compare_command(
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
    grid: Grids = None,
    jobs: JobCount = "auto",
    plugin: Plugins = None,
    trust_plugins: TrustPlugins = False,
) -> None:
    """Compare methods under one protocol, over several seeds.

    The same command again goes on with a comparison: finished runs are not run
    again, an interrupted one goes on where it stopped. One that fails does not
    stop the others. With several seeds the differences to the first method follow,
    each with its 95 % interval. The table is also in comparison.json and
    comparison.csv, and report.html shows the runs.
    """
    from fedtail.cli.describe import described
    from fedtail.study.perform import read_jobs
    from fedtail.study.plan import chosen, make_plan
    from fedtail.study.study import carry_out, folder_for_runs
    from fedtail.study.tables import as_text

    if seeds < 1:
        raise FedtailError(f"--seeds {seeds} is refused: give at least 1")
    at_once = read_jobs(jobs)
    if not methods and not grid:
        raise FedtailError("name at least one method to compare: --method fedavg --method ...")
    plain = described(words, flags, plugin, trust_plugins)
    numbers = range(first_seed(plain), first_seed(plain) + seeds)
    choices = choices_from(methods or [], grid or [])
    plan = make_plan(chosen(plain, choices), numbers, out)
    console = make_console()
    with folder_for_runs(out), interruptible(console):
        study = carry_out(plan, out, at_once, console)
    console.print(as_text(study.lines, console.width), end="")
    console.print(str(out), soft_wrap=True, highlight=False, markup=False)
    if study.failures:
        raise typer.Exit(1)


@contextlib.contextmanager
def interruptible(console: Console) -> Iterator[None]:
    """End with the signal's exit code when the block is interrupted, and say how to go on."""
    try:
        with ended_by_signals():
            yield
    except KeyboardInterrupt as stop:
        console.print("interrupted; the same command goes on from here")
        raise typer.Exit(exit_code(stop)) from None


def choices_from(methods: Sequence[str], grids: Sequence[str]) -> dict[str, list[str]]:
    """Return the values to try by the names of their fields."""
    from fedtail.study.spec import split_spec

    choices = {"method": list(dict.fromkeys(",".join(split_spec(method)) for method in methods))}
    for word in grids:
        path, equals, text = word.partition("=")
        if not equals or not path.strip() or not text.strip():
            raise FedtailError(f"--grid '{word}' is not of the form field=value,value,...")
        choices[path.strip()] = split_spec(text)
    return choices


def first_seed(plain: Mapping[str, Any]) -> int:
    """Return the seed that the others are counted from."""
    first = plain.get("seed", 0)
    if not isinstance(first, int):
        raise FedtailError(f"'seed' = {first!r} is refused: give a whole number")
    return first
