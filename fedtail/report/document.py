"""The page: one HTML file with its style, its script and its data inside."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

from fedtail.callbacks.jsonl import json_ready
from fedtail.errors import FedtailError
from fedtail.files import make_folder, write_atomic
from fedtail.report.content import make_content
from fedtail.report.features import FeatureView
from fedtail.study.runs import Plain, read_runs

SCRIPTS = (
    "draw.js",
    "save.js",
    "charts.js",
    "maps.js",
    "panels.js",
    "clients.js",
    "features.js",
    "page.js",
)
"""The parts of the script, in the order in which they stand on the page."""


def write_report(
    path: Path | str,
    folders: Sequence[Path | str],
    views: Mapping[str, FeatureView] | None = None,
    client: int | None = None,
) -> None:
    """Write the report of some run folders into one HTML file.

    Parameters
    ----------
    path
        The file.
    folders
        Run folders, or folders with run folders inside.
    views, client
        Features to show, and how they are marked (see `make_content`).
    """
    page = make_page(make_content(read_runs(folders), views, client))
    make_folder(Path(path).parent)
    write_atomic(Path(path), page)


def leave_report(folder: Path) -> None:
    """Write ``report.html`` into a folder of runs that are over, or warn that it could not be."""
    # The models are written by now: a page that `fedtail report` can make at any time is no reason
    # to call a run failed.
    try:
        write_report(folder / "report.html", [folder])
    except FedtailError as error:
        print(f"warning: there is no report of '{folder}': {error}", file=sys.stderr)


def make_page(content: Plain, live: bool = False) -> str:
    """Return the page.

    Parameters
    ----------
    content
        What it shows (see `make_content`).
    live
        Whether it asks its server for newer data.
    """
    template, style, script = _parts()
    filled = {
        "STYLE": style,
        "SCRIPT": script,
        "POLICY": page_policy(script, live),
        "LIVE": "true" if live else "false",
        "DATA": embedded(content),
    }
    # Split first: what is put in may itself hold the mark of another place.
    pieces = template.split("%%")
    return "".join(filled.get(piece, piece) for piece in pieces)


def embedded(content: Plain) -> str:
    """Return JSON text that cannot end the script element it stands in."""
    text = json.dumps(
        json_ready(content), allow_nan=False, ensure_ascii=False, separators=(",", ":")
    )
    escapes = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028"}
    for letter, escape in escapes.items():
        text = text.replace(letter, escape)
    return text


@cache
def _parts() -> tuple[str, str, str]:
    folder = files("fedtail.report") / "page"

    def read(name: str) -> str:
        return (folder / name).read_text(encoding="utf-8")

    return read("page.html"), read("page.css"), "\n".join(map(read, SCRIPTS))


def page_style() -> str:
    """Return the style of the report, for other pages in its look."""
    return _parts()[1]


def page_policy(script: str, live: bool = False) -> str:
    """Return what the browser may do: this very script, no other host."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    connect = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        f"img-src data:; connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
