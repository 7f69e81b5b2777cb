"""`fedtail runs`: which runs there are, and how far they have come."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedtail.cli.tables import make_console
from fedtail.errors import FedtailError
from fedtail.study.grid import Row, grid

if TYPE_CHECKING:
    from fedtail.study.runs import Run

EXAMPLES = """Examples:

fedtail runs

fedtail runs runs/compare
"""


def runs_command(
    folder: Annotated[
        Path,
        typer.Argument(metavar="[FOLDER]", help="where to look (default runs)", show_default=False),
    ] = Path("runs"),
) -> None:
    """List run folders: method, data, rounds, accuracy, whether finished, and age.

    The age is that of the last round. The accuracy is that of the model that is
    shipped; while a run still trains, that of the last test.
    """
    from fedtail.study.runs import run_folders

    paths = run_folders(folder)
    if not paths:
        raise FedtailError(f"'{folder}' holds no run: begin one with fedtail run")
    headings = ("run", "method", "data", "rounds", "accuracy", "state", "age")
    console = make_console()
    console.print(grid(headings, [_row(path, folder) for path in paths], console.width, 2), end="")


def _row(path: Path, folder: Path) -> Row:
    from fedtail.study.runs import read_run

    name = str(path.relative_to(folder)) if path != folder else path.name or str(path)
    try:
        run = read_run(path)
    except FedtailError as error:
        return Row(name, ["?"] * 6, [(str(error), "red")])
    done = run.records[-1]["round"] if run.records else 0
    accuracy = (run.tested or {}).get("accuracy")
    return Row(
        name,
        [
            run.method,
            str(run.settings.get("data.name", "?")),
            f"{done}/{run.settings.get('rounds', '?')}",
            "-" if accuracy is None else f"{100 * accuracy:.1f}",
            "finished" if run.finished else "unfinished",
            _age(run),
        ],
    )


def _age(run: Run) -> str:
    """Return how long ago the run last wrote a round; if it has none, its description."""
    from fedtail.callbacks.progress import human_seconds

    files = [run.path / name for name in ("metrics.jsonl", "experiment.toml")]
    newest = next(file for file in files if file.exists()).stat().st_mtime
    seconds = max(0.0, time.time() - newest)
    days = round(seconds / 86_400)
    return f"{days} days" if days > 1 else human_seconds(seconds)
