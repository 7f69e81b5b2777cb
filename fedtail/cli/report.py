"""`fedtail report`: runs to look at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedtail.cli.options import LISTS, TrustPlugins
from fedtail.cli.tables import say
from fedtail.errors import FedtailError
from fedtail.files import make_folder, write_atomic

if TYPE_CHECKING:
    from fedtail.report import FeatureView, Line

EXAMPLES = """Examples:

fedtail report runs/compare --out report.html

fedtail report runs/a runs/b --latex table.tex --figures figures

fedtail report runs/compare --features --client 3

fedtail report runs/a --serve
"""


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="FOLDER...", help="run folders, or folders with run folders inside"),
    ],
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="the page (default report.html)")
    ] = Path("report.html"),
    csv: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="write the summary as CSV", show_default=False),
    ] = None,
    latex: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="write it as a LaTeX table", show_default=False),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="draw the curves and bars as PNG, PDF and SVG",
            show_default=False,
        ),
    ] = None,
    features: Annotated[
        bool,
        typer.Option(
            "--features",
            help="show what enters the classifier as a map (t-SNE), and the classifier's norms; "
            "loads the model and data of the first seed of each method",
        ),
    ] = False,
    samples: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help=f"of --features: how many test samples (default {LISTS['samples']})",
            show_default=False,
        ),
    ] = None,
    client: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            help="of --features: mark this client's majority, minority and missing classes "
            "(default: many, medium, few)",
            show_default=False,
        ),
    ] = None,
    serve: Annotated[
        bool,
        typer.Option("--serve", help="show runs while they train; writes nothing, Ctrl-C ends it"),
    ] = False,
    port: Annotated[
        int, typer.Option(metavar="N", help="of --serve: where it listens; 0 for any free port")
    ] = 8410,
    trust_plugins: TrustPlugins = False,
) -> None:
    """Make one HTML page of runs: tables, curves, classes, the split, settings.

    The page needs no network and no other file. Runs that differ in nothing but
    their seed are one line, with the mean and the deviation over the seeds.
    """
    if not features and (samples is not None or client is not None):
        given = "--samples" if samples is not None else "--client"
        raise FedtailError(f"{given} is of --features, which is not given")
    if serve:
        if csv or latex or figures:
            raise FedtailError("--serve writes no file: leave out --csv, --latex and --figures")
        if features:
            raise FedtailError("--features is of runs that are finished: leave out --serve")
        show_live(folders, port)
        return
    from fedtail.overwrite import must_not_replace
    from fedtail.report import (
        features_csv,
        make_content,
        make_page,
        norms_csv,
        write_figures,
    )
    from fedtail.report.facts import cautions
    from fedtail.study.lines import make_lines
    from fedtail.study.runs import read_runs
    from fedtail.study.tables import as_csv, as_latex

    asked = [path for path in (out, csv, latex) if path is not None]
    for number, path in enumerate(asked):
        must_not_replace(path)
        if path.is_dir():
            raise FedtailError(f"'{path}' is refused: it is a folder; name a file")
        if path.resolve() in [other.resolve() for other in asked[:number]]:
            raise FedtailError(f"'{path}' is refused: it is to hold another table or the page too")
    if figures is not None and figures.exists() and not figures.is_dir():
        raise FedtailError(f"--figures {figures} is refused: it is a file; name a folder")
    runs = read_runs(folders)
    lines = make_lines(runs)
    for caution in cautions(lines):
        say(f"warning: {caution}")
    views = (
        look_at(lines, LISTS["samples"] if samples is None else samples, client, trust_plugins)
        if features
        else {}
    )
    written = {out: make_page(make_content(runs, views, client))}
    if csv is not None:
        written[csv] = as_csv(lines)
        if views:
            written[beside(csv, "features")] = features_csv(views, client)
            written[beside(csv, "norms")] = norms_csv(views, client)
    if latex is not None:
        written[latex] = as_latex(lines)
    for path, text in written.items():
        make_folder(path.parent)
        write_atomic(path, text)
    drawn = [] if figures is None else write_figures(figures, lines, views, client)
    for path in (*written, *drawn):
        say(f"written: {path}")


def look_at(
    lines: list[Line], samples: int, client: int | None, trust: bool
) -> dict[str, FeatureView]:
    """Return the features of each line that has a model, and say which are being made."""
    from fedtail.report import feature_view, first_finished

    chosen = {line.label: first_finished(line) for line in lines}
    if not any(chosen.values()):
        raise FedtailError("--features needs a finished run: none of these has a model yet")
    views = {}
    for label, run in chosen.items():
        if run is None:
            say(f"no features of {label}: no run of it is finished")
            continue
        say(f"features of {label}: {run.path}")
        views[label] = feature_view(run, samples=samples, trust_plugins=trust)
        views[label].marks(client)  # refuses a client that is not there, before the next one
    return views


def beside(path: Path, name: str) -> Path:
    """Return the path of another table with this file: ``study.csv`` gives ``study-norms.csv``."""
    return path.with_name(f"{path.stem}-{name}{path.suffix}")


def show_live(folders: list[Path], port: int) -> None:
    """Serve until Ctrl-C."""
    from fedtail.report.serve import HOST, make_server

    must_be_there(folders)
    try:
        with make_server(folders, port) as server:
            say(f"http://{HOST}:{server.server_port}/  (Ctrl-C ends it)")
            server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        say("stopped")


def must_be_there(folders: list[Path]) -> None:
    """Refuse folders that are not there; one that is there may get its first run later."""
    missing = next((folder for folder in folders if not folder.is_dir()), None)
    if missing is not None:
        raise FedtailError(f"'{missing}' is not a folder")
