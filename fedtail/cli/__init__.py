"""The command line."""

from __future__ import annotations

import logging
import re
import sys
import traceback
from typing import Annotated

import typer

from fedtail.cli import audit as _audit
from fedtail.cli import check as _check
from fedtail.cli import compare as _compare
from fedtail.cli import doctor as _doctor
from fedtail.cli import export as _export
from fedtail.cli import features as _features
from fedtail.cli import predict as _predict
from fedtail.cli import report as _report
from fedtail.cli import reproduce as _reproduce
from fedtail.cli import run as _run
from fedtail.cli import runs as _runs
from fedtail.cli import split as _split
from fedtail.cli import tune as _tune
from fedtail.cli.data import data_app
from fedtail.cli.flower import flower_app
from fedtail.cli.methods import methods
from fedtail.errors import FedtailError, RunStopped, is_wrong_input
from fedtail.output import guard_streams, unwritten
from fedtail.plugins import place_beneath
from fedtail.version import __version__

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Begin with: fedtail run",
)
app.command("run", epilog=_run.EXAMPLES)(_run.run_command)
app.command("compare", epilog=_compare.EXAMPLES)(_compare.compare_command)
app.command("doctor", epilog=_doctor.EXAMPLES)(_doctor.doctor_command)
app.command("tune", epilog=_tune.EXAMPLES)(_tune.tune_command)
app.command("runs", epilog=_runs.EXAMPLES)(_runs.runs_command)
app.command(epilog=_split.EXAMPLES)(_split.split)
app.command(epilog=_predict.EXAMPLES)(_predict.predict)
app.command(name="export", epilog=_export.EXAMPLES)(_export.export_command)
app.command(name="features", epilog=_features.EXAMPLES)(_features.features_command)
app.command(epilog=_report.EXAMPLES)(_report.report)
app.command(epilog=_reproduce.EXAMPLES)(_reproduce.reproduce)
app.command()(methods)
app.command(epilog=_check.EXAMPLES)(_check.check)
app.command(name="audit", epilog=_audit.EXAMPLES)(_audit.audit_command)
app.add_typer(data_app, name="data")
app.add_typer(flower_app, name="flower")


def _version(asked: bool) -> None:
    if asked:
        print(f"fedtail {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Train one good global model from data that is decentralised, non-IID and long-tailed."""


def main() -> None:
    """Run the command line: wrong input is one sentence and exit code 2, never a traceback."""
    guard_streams()
    if logging.lastResort is not None:  # what is logged while no run is shown looks the same
        logging.lastResort.setFormatter(logging.Formatter("warning: %(message)s"))
    try:
        code = app(standalone_mode=False)
    except Exception as error:
        explained = explain(error)
        if explained is None:
            traceback.print_exception(error)
        message, code = explained or ("", 1)
        if message:
            print(f"error: {message}", file=sys.stderr)
    code = code if isinstance(code, int) else 0
    lost = unwritten()
    if lost:
        print(f"error: cannot write standard output: {lost}", file=sys.stderr)
    sys.exit(code or int(bool(lost)))


def explain(error: Exception) -> tuple[str, int] | None:
    """Return one sentence and the exit code, or nothing for what is a bug."""
    if isinstance(error, RunStopped):
        # What another process raised has its traceback there as a note.
        return "\n".join([str(error), *getattr(error, "__notes__", ())]), 1
    if not is_wrong_input(error):
        return _usage(error)
    match error:
        case FedtailError():
            return f"{error}{place_beneath(error)}", 2
        case OSError():
            reason = error.strerror or str(error)
            return (f"{error.filename}: {reason}" if error.filename else reason), 2
    return None


def _usage(error: Exception) -> tuple[str, int] | None:
    # Told by what it can do: typer raises click's errors, or those of a copy of click of its own.
    format_message = getattr(error, "format_message", None)
    if format_message is None:
        return None
    message = " ".join(str(format_message()).split())
    if not message:  # without a command the help was shown, and there is nothing to add
        return "", 0
    message, *more = re.split(r"\.? \(?(?=Did you mean)", message.removesuffix("."), maxsplit=1)
    near = getattr(error, "possibilities", None) or re.findall(r"'([^']+)'", "".join(more))
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return f"{message[0].lower()}{message[1:]}{hint}", 2
