"""One run of several: done already, left to be finished, or failed without stopping the others."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from fedtail.callbacks import Progress, read_records
from fedtail.cli.results import History
from fedtail.errors import FedtailError, RunStopped
from fedtail.experiment import Experiment, load_experiment, make_experiment
from fedtail.folder import RunFolder
from fedtail.loop import run
from fedtail.plugins import first_line_and_place


def reason(error: Exception) -> str:
    """Return why a run failed; for a bug in a method, with its place in the file."""
    if isinstance(error, FedtailError | RunStopped):
        return str(error)
    return first_line_and_place(error)


def settle(experiment: Experiment, path: Path, console: Console) -> History:
    """Return the history of a run, after doing what is left of it."""
    folder = RunFolder(path)
    started = folder.experiment.exists()
    if started and not same(make_experiment(load_experiment(folder.experiment)), experiment):
        raise FedtailError("its folder holds a run with other settings; choose another --out")
    records = read_records(folder.metrics) if folder.finished else []
    if records:
        console.print(f"{experiment.title}: done already", markup=False, highlight=False)
    else:
        run(experiment, out=path, resume=started, callbacks=[Progress(console)])
        records = read_records(folder.metrics)
    return records


def same(one: Experiment, other: Experiment) -> bool:
    """Whether two experiments compute the same: the number of workers changes no bit."""
    return one.but(workers=0) == other.but(workers=0)
