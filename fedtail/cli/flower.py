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
    secure: Annotated[bool, typer.Option("--secure", help="the server learns sums only")] = False,
) -> None:
    """Write a Flower app that `flwr run` accepts, offline."""
    from fedtail.engines.flower.new import new_app

    for path in new_app(folder, method, publisher, epsilon, secure):
        print(path)


@flower_app.command("key")
def key(
    file: Annotated[Path, typer.Argument(help="a new file for the node's private key")],
) -> None:
    """Make the key by which other nodes know this one in secure sums.

    The private key stays on the node (`secure-key`). The line that is printed, with the node's
    partition-id in front, is for a file that all nodes have (`secure-pins`).
    """
    from fedtail.privacy.secure.keys import new_identity

    print(f'PARTITION-ID = "{new_identity(file)}"')
