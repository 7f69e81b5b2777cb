"""`fedtail compare`: several methods, several seeds, one protocol, one table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedtail.callbacks import Progress
from fedtail.cli.options import Plugins, Words, apply, described, with_flags
from fedtail.cli.tables import comparison
from fedtail.errors import FedtailError, RunStopped
from fedtail.experiment import Experiment, load_experiment, make_experiment, parse_overrides
from fedtail.files import make_folder
from fedtail.folder import RunFolder
from fedtail.loop import run


@with_flags("method", "seed")
def compare(
    flags: dict[str, Any],
    words: Words = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            metavar="NAME[,FIELD=VALUE]...",
            help="a method to compare, perhaps with fields of its own; repeat the flag for more",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="how many seeds, from 0")] = 1,
    out: Annotated[Path, typer.Option(help="the folder of all runs")] = Path("runs/compare"),
    plugin: Plugins = None,
) -> None:
    """Compare methods under one protocol, over several seeds.

    Runs that are there already are not run again, and one that was interrupted goes on where it
    stopped, so the same command continues a comparison. One that fails does not stop the others.

    fedtail compare --method fedavg --method "fedavg,loss=balanced_softmax" --data digits --seeds 3
    """
    if not methods:
        raise FedtailError("name at least one method to compare: --method fedavg --method ...")
    plain = described(words, flags, plugin)
    plan = {(spec, seed): variant(plain, spec, seed) for spec in methods for seed in range(seeds)}
    make_folder(out)
    console = Console()
    histories: dict[str, list[Any]] = {spec: [] for spec in methods}
    failed: dict[str, str] = {}
    for (spec, seed), experiment in plan.items():
        try:
            histories[spec].append(settle(experiment, out / folder_name(spec, seed), console))
        except (FedtailError, RunStopped) as error:
            failed[f"{spec} seed {seed}"] = str(error)
            console.print(f"{spec} seed {seed} failed: {error}", style="red", soft_wrap=True)
    console.print(comparison(histories, failed))
    if failed:
        raise typer.Exit(1)


def variant(plain: dict[str, Any], spec: str, seed: int) -> Experiment:
    """Return the experiment with another method and seed."""
    name, *fields = spec.split(",")
    changed = {**plain, "seed": seed, "name": f"{spec} seed {seed}"}
    if isinstance(changed.get("method"), dict):
        changed["method"] = dict(changed["method"])
    apply(changed, "method", name)
    for path, value in parse_overrides(fields):
        apply(changed, f"method.{path}", value)
    return make_experiment(changed)


def folder_name(spec: str, seed: int) -> str:
    """Return a name for the run's folder that is safe in any file system."""
    safe = "".join(c if c.isalnum() or c in "-._=" else "-" for c in spec)
    return f"{safe}-seed{seed}"


def settle(experiment: Experiment, path: Path, console: Console) -> list[dict[str, Any]]:
    """Return the history of a run, after doing what is left of it."""
    folder = RunFolder(path)
    started = folder.experiment.exists()
    if started and make_experiment(load_experiment(folder.experiment)) != experiment:
        raise FedtailError(f"'{path}' holds a run with other settings; choose another --out")
    if not folder.finished:
        run(experiment, out=path, resume=started, callbacks=[Progress(console)])
    return folder.records()
