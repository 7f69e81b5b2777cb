"""`fedtail split`: look at a split before training on it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedtail.cli.options import Plugins, Words, experiment_from, with_flags
from fedtail.data.plot import draw, terminal
from fedtail.files import write_atomic
from fedtail.setting import share_out


@with_flags(
    "method",
    "model",
    "rounds",
    "epochs",
    "batch_size",
    "lr",
    "workers",
    "threads",
    "device",
    "min_clients",
    "eval_every",
    "per_round",
)
def split(
    flags: dict[str, Any],
    words: Words = None,
    png: Annotated[
        Path | None, typer.Option(help="draw it into this PNG", show_default=False)
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="write the recipe as JSON", show_default=False)
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Show who gets which classes: a table, a picture, and how far clients are from the whole.

    fedtail split --data digits --imbalance 20 --partition dirichlet --alpha 0.3 --clients 10
    """
    experiment = experiment_from(words, flags, plugin)
    dataset = experiment.data.load()
    made = share_out(experiment, dataset)
    console = Console()
    console.print(made.table(dataset.classes))
    console.print(terminal(made))
    for line in made.summary():
        console.print(line, highlight=False)
    if png is not None:
        draw(made, png, dataset.classes)
    if save is not None:
        write_atomic(save, made.to_json())
