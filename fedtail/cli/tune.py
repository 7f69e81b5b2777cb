"""`fedtail tune`: a search for each method's hyper-parameters, all with the same budget."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from fedtail.cli.compare import choices_from, interruptible
from fedtail.cli.options import (
    EXPERIMENT,
    OUTPUT,
    Grids,
    JobCount,
    Plugins,
    TrustPlugins,
    Words,
    with_flags,
)
from fedtail.cli.tables import make_console
from fedtail.errors import FedtailError

EXAMPLES = """Examples:

fedtail tune --method fedavg --method fedlc --imbalance 20 validation=0.2

fedtail tune a.toml --method fedlc --range tau=0.5..4 --grid local.epochs=1,5
"""


@with_flags("method")
def tune_command(
    flags: dict[str, Any],
    words: Words = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            metavar="NAME[,FIELD=VALUE]...",
            help="a method; fields that are given stay; repeat the flag for more",
            rich_help_panel=EXPERIMENT,
            show_default=False,
        ),
    ] = None,
    trials: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="runs of each method (default 20)",
            rich_help_panel=EXPERIMENT,
            show_default=False,
        ),
    ] = 20,
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            "--range",
            metavar="FIELD=LOW..HIGH[:log]",
            help="bounds of a field of the methods, beside or instead of the usual ones; "
            ":int for whole numbers",
            rich_help_panel=EXPERIMENT,
            show_default=False,
        ),
    ] = None,
    grid: Grids = None,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="where all trials go (default runs/tune)",
            rich_help_panel=OUTPUT,
            show_default=False,
        ),
    ] = Path("runs/tune"),
    jobs: JobCount = "auto",
    plugin: Plugins = None,
    trust_plugins: TrustPlugins = False,
) -> None:
    """Search the hyper-parameters of methods, with as many trials for each.

    A trial is scored by the samples that clients hold out (validation=0.1); the
    test set chooses nothing. What promises less than half of the trials before it
    is given up early. The same command again goes on, also with more --trials.
    The best values are also in tuned.json, all trials in tune.db (Optuna's).
    """
    from fedtail.cli.describe import described
    from fedtail.study.perform import read_jobs
    from fedtail.study.study import folder_for_runs
    from fedtail.study.tune import search

    at_once = read_jobs(jobs)
    if not methods:
        raise FedtailError("name at least one method to tune: --method fedlc --method ...")
    plain = described(words, flags, plugin, trust_plugins)
    typed = choices_from(methods, grid or [])
    bounds: dict[str, str] = {}
    for word in ranges or []:
        path, equals, text = word.partition("=")
        if not equals:
            raise FedtailError(f"--range '{word}' is not of the form field=low..high")
        bounds[path.strip()] = text.strip()
    console = make_console()
    with folder_for_runs(out), interruptible(console):
        names = typed.pop("method")
        tuned = search(plain, names, trials, bounds, typed, out, at_once, console)
    console.print(tuned.text(console.width), end="")
    if tuned.methods:
        shown = " ".join(f"--method {shlex.quote(each)}" for each in tuned.methods)
        line = f"compare them with: fedtail compare ... --seeds 3 {shown}"
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    console.print(str(out), soft_wrap=True, highlight=False, markup=False)
    if any(each.score is None for each in tuned.found):
        raise typer.Exit(1)
