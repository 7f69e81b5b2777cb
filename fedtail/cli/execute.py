"""What `fedtail run` does: begin a run, go on with one, show one that is finished."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from fedtail.callbacks import Progress, Record, read_records
from fedtail.callbacks.progress import ending
from fedtail.cli.tables import make_console, say, show_run
from fedtail.described import load_experiment, make_experiment
from fedtail.engines.flower.launcher import Launch, make_launch, stored_launch
from fedtail.errors import FedtailError, is_wrong_input
from fedtail.experiment import Experiment
from fedtail.folder import RunFolder, free_folder
from fedtail.loop import run
from fedtail.metrics import shipped_record
from fedtail.plugins import load_plugins, must_be_trusted, stored_plugins
from fedtail.signals import ended_by_signals, exit_code
from fedtail.state import digest
from fedtail.study.spec import safe_name


def begin(experiment: Experiment, out: Path | None, launch: Launch | None) -> None:
    """Run an experiment, in a new folder under ``runs/`` if none is given."""
    name = safe_name(experiment.title)
    folder = RunFolder(out) if out else free_folder(Path("runs"), name)
    execute(experiment, folder, False, launch)


def go_on(path: Path, trust: bool, changes: Mapping[str, Any]) -> None:
    """Do what is left of the run in a folder, or show it if that is nothing.

    Parameters
    ----------
    path, trust
        The folder, and whether its plug-ins may run.
    changes
        Fields that say when it ends, if they are to be others.
    """
    folder = RunFolder(path)
    stored = reopen(folder, trust)
    experiment = stored.but(**changes)
    history = read_records(folder.metrics) if folder.finished and experiment == stored else []
    if history:
        show_finished(experiment, folder, history)
    else:
        execute(experiment, folder, True, stored_launch(folder.path))


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
    start = run if launch is None else launch.run
    try:
        with ended_by_signals():
            result = start(
                experiment, out=folder.path, resume=resume, callbacks=[Progress(console)]
            )
    except (Exception, KeyboardInterrupt) as stop:
        if folder.experiment.exists() and not is_wrong_input(stop):
            trust = " --trust-plugins" if experiment.plugins else ""
            say(f"go on with: fedtail run --resume {folder.path}{trust}")
        if isinstance(stop, KeyboardInterrupt):
            raise typer.Exit(exit_code(stop)) from None
        raise
    show_run(console, experiment.title, result.history, experiment.server_data)
    say(f"{folder.path}  model {result.digest[:16]}")


def show_finished(experiment: Experiment, folder: RunFolder, history: Sequence[Record]) -> None:
    """Show a run that came to its end before."""
    model = digest(folder.shipped())[:16]
    say(f"this run is finished: {len(history)} of {experiment.rounds} rounds")
    for line in ending(shipped_record(history), history[-1], experiment.score):
        say(line)
    show_run(make_console(), experiment.title, history, experiment.server_data)
    say(f"{folder.path}  model {model}")
