"""`fedtail run`: one experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedtail.cli.options import (
    OUTPUT,
    RUNNING,
    EngineName,
    Nodes,
    Plugins,
    TrustPlugins,
    Words,
    with_flags,
)
from fedtail.errors import FedtailError

EXAMPLES = """Examples:

fedtail run --imbalance 20 --alpha 0.3 --rounds 30 --epochs 2 --lr 0.1

fedtail run --data mine.npz --model resnet8 model.width=16 --workers 2

fedtail run experiment.toml method.local.lr=0.1 --seed 1

fedtail run --method creff --rounds 5 --engine flower --nodes 3

fedtail run --validation 0.1 --keep best --patience 5 --rounds 100

fedtail run --resume runs/digits-slac-seed0

fedtail run --resume runs/digits-slac-seed0 --rounds 200
"""


@with_flags()
def run_command(
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
            help="go on with the run in this folder, perhaps to another number of --rounds; "
            "beside it only --patience and --trust-plugins",
            rich_help_panel=RUNNING,
            show_default=False,
        ),
    ] = None,
    engine: EngineName = "embedded",
    nodes: Nodes = None,
    tls: Annotated[
        bool,
        typer.Option(
            "--tls",
            help="of flower: nodes also prove who they are, by keys as deployed ones have",
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

    Without any option this trains SLAC on the digits that come with the package.
    Every field of an experiment can be set: fields without a flag as
    SECTION.FIELD=VALUE, many of them in a TOML file.
    """
    from fedtail.cli.describe import experiment_from
    from fedtail.cli.execute import begin, go_on, launch_from

    launch = launch_from(engine, nodes, tls, deadline)
    if resume is None:
        begin(experiment_from(words, flags, plugin, trust_plugins), out, launch)
        return
    from fedtail.described import parse_overrides
    from fedtail.folder import LENGTH

    changes = {**flags, **dict(parse_overrides(words or []))}
    if changes.keys() - LENGTH or out or plugin or launch:
        raise FedtailError(
            "--resume takes the experiment from its folder: give nothing else but --rounds and "
            "--patience; to change something, begin a new run with fedtail run "
            f"{resume}/experiment.toml ..."
        )
    go_on(resume, trust_plugins, changes)
