"""`fedtail run`: one experiment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedtail.callbacks import Progress, Record
from fedtail.cli.describe import experiment_from
from fedtail.cli.options import OUTPUT, RUNNING, Plugins, TrustPlugins, Words, with_flags
from fedtail.cli.tables import make_console, show_run
from fedtail.engines.flower.launcher import Launch, make_launch, stored_launch
from fedtail.errors import FedtailError, is_wrong_input
from fedtail.experiment import Experiment, load_experiment, make_experiment
from fedtail.folder import RunFolder, free_folder
from fedtail.loop import run as run_experiment
from fedtail.plugins import load_plugins, must_be_trusted, stored_plugins
from fedtail.signals import ended_by_signals, exit_code
from fedtail.state import digest

EXAMPLES = """Examples:

fedtail run --imbalance 20 --alpha 0.3 --rounds 30

fedtail run --data mine.npz --model resnet8 model.width=16 --workers 2

fedtail run experiment.toml method.local.lr=0.1 --seed 1

fedtail run --method creff --rounds 5 --engine flower --nodes 3

fedtail run --resume runs/digits-fedavg-seed0
"""


@with_flags()
def run(
    flags: dict[str, Any],
    words: Words = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="the run folder (default: a new one under runs/)",
            rich_help_panel=OUTPUT,
            show_default=False,
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="go on with the run in this folder; takes no other option but --trust-plugins",
            rich_help_panel=RUNNING,
            show_default=False,
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="where clients train: embedded, flower (SuperNodes on this machine) or ray "
            "(Flower's simulation); the model is the same (default embedded)",
            rich_help_panel=RUNNING,
            show_default=False,
        ),
    ] = "embedded",
    nodes: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="of flower and ray: how many nodes serve the clients (default 3)",
            rich_help_panel=RUNNING,
            show_default=False,
        ),
    ] = None,
    tls: Annotated[
        bool,
        typer.Option(
            "--tls",
            help="of flower: encrypt, and nodes prove who they are",
            rich_help_panel=RUNNING,
        ),
    ] = False,
    deadline: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="of flower and ray: clients that take longer are left out (default 600)",
            rich_help_panel=RUNNING,
            show_default=False,
        ),
    ] = None,
    plugin: Plugins = None,
    trust_plugins: TrustPlugins = False,
) -> None:
    """Train one global model from the data of many clients.

    Without any option this trains FedAvg on the digits that come with the package.
    Every field of an experiment can be set: fields without a flag as
    SECTION.FIELD=VALUE, many of them in a TOML file.
    """
    launch = launch_from(engine, nodes, tls, deadline)
    if resume is None:
        experiment = experiment_from(words, flags, plugin, trust_plugins)
        folder = RunFolder(out) if out else free_folder(Path("runs"), folder_name(experiment))
        execute(experiment, folder, False, launch)
        return
    if flags or words or out or plugin or launch:
        raise FedtailError(
            "--resume takes the whole experiment from its folder: give nothing else; to change "
            f"something, begin a new run with fedtail run {resume}/experiment.toml ..."
        )
    folder = RunFolder(resume)
    experiment = reopen(folder, trust_plugins)
    history = folder.records() if folder.finished else []
    if history:
        show_finished(experiment, folder, history)
    else:
        execute(experiment, folder, True, stored_launch(folder.path))


def folder_name(experiment: Experiment) -> str:
    """Return the run's title as the name of one folder."""
    return experiment.title.replace("/", "-").replace("\\", "-")


def reopen(folder: RunFolder, trust: bool) -> Experiment:
    """Return the experiment that a run folder holds; its plug-ins run only if they are trusted."""
    folder.must_be_a_run()
    plain = load_experiment(folder.experiment)
    plugins = stored_plugins(plain)
    must_be_trusted(plugins, folder.path, trust)
    load_plugins(plugins)
    return make_experiment(plain)


def launch_from(engine: str, nodes: int | None, tls: bool, deadline: float | None) -> Launch | None:
    """Return how a federation is to be made, or nothing for a run in this process."""
    chosen = {"nodes": nodes, "tls": tls or None, "deadline": deadline}
    given = {name: value for name, value in chosen.items() if value is not None}
    if engine == "embedded":
        if given:
            raise FedtailError(f"--{next(iter(given))} is of --engine flower, and none is given")
        return None
    return make_launch(engine=engine, **given)


def execute(
    experiment: Experiment, folder: RunFolder, resume: bool, launch: Launch | None = None
) -> None:
    """Run, show, and say how to go on if it is stopped."""
    console = make_console()
    begin = run_experiment if launch is None else launch.run
    try:
        with ended_by_signals():
            result = begin(
                experiment, out=folder.path, resume=resume, callbacks=[Progress(console)]
            )
    except (Exception, KeyboardInterrupt) as stop:
        if folder.experiment.exists() and not is_wrong_input(stop):
            trust = " --trust-plugins" if experiment.plugins else ""
            _say(f"go on with: fedtail run --resume {folder.path}{trust}")
        if isinstance(stop, KeyboardInterrupt):
            raise typer.Exit(exit_code(stop)) from None
        raise
    show_run(console, experiment.title, result.history, experiment.server_data)
    _say(f"{folder.path}  model {result.digest[:16]}")


def show_finished(experiment: Experiment, folder: RunFolder, history: Sequence[Record]) -> None:
    """Show a run that came to its end before."""
    model = digest(folder.shipped())[:16]
    _say(f"this run is finished: {len(history)} of {experiment.rounds} rounds")
    show_run(make_console(), experiment.title, history, experiment.server_data)
    _say(f"{folder.path}  model {model}")


def _say(line: str) -> None:
    make_console().print(line, soft_wrap=True, highlight=False, markup=False)
