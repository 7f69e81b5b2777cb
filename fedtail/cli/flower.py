"""`fedtail flower`: apps for federations of machines."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from fedtail.cli.options import known

flower_app = typer.Typer(help="write apps for federations of machines", no_args_is_help=True)


@flower_app.callback()
def flower() -> None:
    """Write apps for federations of machines."""


@flower_app.command("new")
def new(
    folder: Annotated[Path, typer.Argument(help="where to; its name becomes the app's")],
    method: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="what is trained: see `fedtail methods`",
            autocompletion=known("method"),
        ),
    ] = "creff",
    publisher: Annotated[
        str, typer.Option(metavar="NAME", help="whom Flower calls the publisher")
    ] = "me",
    epsilon: Annotated[
        float,
        typer.Option(
            metavar="E",
            help="differential privacy: the budget of a run (default inf, which is none)",
            show_default=False,
        ),
    ] = math.inf,
) -> None:
    """Write a Flower app that `flwr run` accepts, offline."""
    from fedtail.engines.flower.new import new_app

    for path in new_app(folder, method, publisher, epsilon):
        print(path)
