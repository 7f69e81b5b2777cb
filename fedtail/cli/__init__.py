"""The command line."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from pydantic import ValidationError

from fedtail.cli.compare import compare
from fedtail.cli.data import app as data
from fedtail.cli.methods import methods
from fedtail.cli.run import run
from fedtail.cli.split import split
from fedtail.errors import FedtailError, RunStopped, sentence
from fedtail.version import __version__

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(run)
app.command()(compare)
app.command()(split)
app.command()(methods)
app.add_typer(data, name="data")


def _version(asked: bool) -> None:
    if asked:
        print(f"fedtail {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="show the version")
    ] = False,
) -> None:
    """Train one good global model from data that is decentralised, non-IID and long-tailed."""


def main() -> None:
    """Run the command line: wrong input is one sentence and exit code 2, never a traceback."""
    try:
        app()
    except FedtailError as error:
        _fail(str(error), 2)
    except ValidationError as error:
        _fail(sentence(error), 2)
    except RunStopped as error:
        _fail(str(error), 1)
    except OSError as error:
        _fail(f"{error.filename or 'a file'}: {error.strerror or error}", 2)


def _fail(message: str, code: int) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(code)
