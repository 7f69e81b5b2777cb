"""`fedtail run`: one experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedtail.callbacks import Progress
from fedtail.cli.options import Plugins, Words, experiment_from, with_flags
from fedtail.cli.tables import summary
from fedtail.errors import FedtailError, RunStopped
from fedtail.experiment import Experiment, load_experiment, make_experiment
from fedtail.folder import RunFolder, free_folder
from fedtail.loop import run as run_experiment
from fedtail.plugins import load_plugins


@with_flags()
def run(
    flags: dict[str, Any],
    words: Words = None,
    out: Annotated[
        Path | None,
        typer.Option(help="the run folder; by default a new one under runs/", show_default=False),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="go on with the run in this folder", show_default=False
        ),
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Train one global model from the data of many clients.

    Without any option this trains FedAvg on the digits that come with the package. Examples:

    fedtail run --method fedavg --data digits --imbalance 20 --alpha 0.3 --rounds 30

    fedtail run experiment.toml method.local.lr=0.1 --seed 1

    fedtail run --resume runs/digits-fedavg-seed0
    """
    if resume is not None:
        if flags or words or out or plugin:
            raise FedtailError("--resume takes the experiment from its folder: give nothing else")
        folder, experiment = reopen(resume)
    else:
        experiment = experiment_from(words, flags, plugin)
        folder = RunFolder(out) if out else free_folder(Path("runs"), experiment.title)
    execute(experiment, folder, resume is not None)


def reopen(path: Path) -> tuple[RunFolder, Experiment]:
    """Return a run folder and the experiment that it holds."""
    folder = RunFolder(path)
    folder.must_be_a_run()
    plain = load_experiment(folder.experiment)
    load_plugins(plain.get("plugins", []))
    return folder, make_experiment(plain)


def execute(experiment: Experiment, folder: RunFolder, resume: bool) -> None:
    """Run, show, and say how to go on if it is stopped."""
    console = Console()
    try:
        result = run_experiment(
            experiment, out=folder.path, resume=resume, callbacks=[Progress(console)]
        )
    except (RunStopped, KeyboardInterrupt) as stop:
        if folder.experiment.exists():
            console.print(f"go on with: fedtail run --resume {folder.path}", soft_wrap=True)
        if isinstance(stop, KeyboardInterrupt):
            raise typer.Exit(130) from None
        raise
    console.print(summary(result.history, title=experiment.title))
    console.print(f"{folder.path}  model {result.digest[:16]}", soft_wrap=True, highlight=False)
