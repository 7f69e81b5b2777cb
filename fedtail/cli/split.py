"""`fedtail split`: look at a split before training on it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtail.cli.options import OUTPUT, Plugins, TrustPlugins, Words, with_flags
from fedtail.cli.tables import make_console, say
from fedtail.files import write_atomic

if TYPE_CHECKING:
    from fedtail.data.dataset import Source

EXAMPLES = """Examples:

fedtail split --imbalance 20 --alpha 0.3 --clients 10

fedtail split --data mine.npz --partition natural --png split.png
"""


@with_flags(
    "method",
    "model",
    "train",
    "rounds",
    "epochs",
    "batch_size",
    "lr",
    "workers",
    "together",
    "threads",
    "device",
    "precision",
    "min_clients",
    "on_client_error",
    "eval_every",
    "keep",
    "patience",
    "per_round",
    "secure",
    "epsilon",
)
def split(
    flags: dict[str, Any],
    words: Words = None,
    png: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="draw it into this file",
            rich_help_panel=OUTPUT,
            show_default=False,
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="write the recipe and the counts as JSON",
            rich_help_panel=OUTPUT,
            show_default=False,
        ),
    ] = None,
    plugin: Plugins = None,
    trust_plugins: TrustPlugins = False,
) -> None:
    """Show who gets which classes: a table, a picture, and how skewed it is.

    Nothing is trained. The same flags given to `fedtail run` train on this split.
    """
    from fedtail.cli.describe import experiment_from
    from fedtail.data.plot import draw_split, terminal
    from fedtail.overwrite import must_not_replace
    from fedtail.setting import share_out

    experiment = experiment_from(words, flags, plugin, trust_plugins)
    for path in filter(None, (png, save)):
        must_not_replace(path, read_by([*(words or []), *(plugin or [])], experiment.data))
    dataset = experiment.data.load()
    made = share_out(experiment, dataset)
    if png is not None:
        draw_split(made, png, dataset.classes)
    if save is not None:
        write_atomic(save, made.to_json(dataset.client_names))
    console = make_console()
    console.print(made.table(dataset.classes, dataset.client_names))
    console.print(terminal(made, clients=made.names(dataset.client_names)))
    for line in made.summary():
        console.print(line, highlight=False, markup=False)
    for path in filter(None, (png, save)):
        say(f"written: {path}")


def read_by(words: list[str], data: Source) -> list[Path]:
    """Return what may be a file or folder that an experiment or its data are read from."""
    named = [value for value in data.describe().values() if isinstance(value, str)]
    return [Path(name).expanduser() for name in (*words, *named)]
