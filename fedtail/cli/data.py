"""`fedtail data`: which data there is, how to get it, and what is in it."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedtail.cli.options import Plugins, known
from fedtail.cli.tables import make_console
from fedtail.plugins import load_plugins

if TYPE_CHECKING:
    from fedtail.data.dataset import Dataset, Source

data_app = typer.Typer(help="list, fetch and describe data sets", no_args_is_help=True)


@data_app.command("list")
def list_sources(
    as_json: Annotated[bool, typer.Option("--json", help="print a list of objects")] = False,
    plugin: Plugins = None,
) -> None:
    """List every data source, and where it is or how to get it."""
    from fedtail.data.sources import Source

    load_plugins(plugin or [])
    rows = [_row(name) for name in Source.registry]
    if as_json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    width = make_console().width
    names = max(len(row["name"]) for row in rows)
    for row in rows:
        print(_entry(row, names, width))


@data_app.command("fetch")
def fetch_command(
    name: Annotated[
        str,
        typer.Argument(
            help="a public data set, see `fedtail data list`", autocompletion=known("data")
        ),
    ],
    folder: Annotated[
        Path | None, typer.Option(help="where to put it; default: FEDTAIL_DATA, or a cache")
    ] = None,
    keep_archives: Annotated[
        bool, typer.Option("--keep-archives", help="keep the downloaded files beside the npz")
    ] = False,
) -> None:
    """Get and verify a public data set."""
    from fedtail.data.fetch import fetch as fetch_data

    print(fetch_data(name, folder, keep_archives=keep_archives))


@data_app.command()
def info(
    name: Annotated[
        str,
        typer.Argument(
            help="a data source, one with its path (folder:PATH), or a file: npz, csv, tsv, jsonl",
            autocompletion=known("data"),
        ),
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[data.FIELD=VALUE]...",
            help="fields of the source, such as data.size=64 or data.label=kind",
            show_default=False,
        ),
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Describe a data source and, if its data is here, what is in it."""
    from fedtail.data.sources import Source
    from fedtail.described import apply, parse_overrides, source_of
    from fedtail.errors import FedtailError

    load_plugins(plugin or [])
    console = Console(soft_wrap=True, highlight=False, markup=False)
    if words or source_of(name) is not None or ":" in name:
        plain: dict[str, Any] = {}
        apply(plain, "data", name)
        for path, value in parse_overrides(words or []):
            if not path.startswith("data."):
                raise FedtailError(f"'{path}' is no field of the data: give data.FIELD=VALUE")
            apply(plain, path, value)
        _describe(Source.model_validate(plain["data"]), console)
        return
    cls = Source.registry[name]
    console.print(f"{name}: {cls.about.what}")
    for field, details in cls.model_fields.items():
        default = "required" if details.is_required() else f"default {details.default}"
        console.print(f"  data.{field} ({default}): {details.description}")
    required = any(details.is_required() for details in cls.model_fields.values())
    if cls.located() is None or required:
        console.print(f"  to have it: {cls.advice()}")
        return
    console.print(f"  here: {cls.located()}")
    _describe(cls(), console)


def _row(name: str) -> dict[str, str]:
    from fedtail.data.sources import Source

    cls = Source.registry[name]
    about = cls.about
    return {
        "name": name,
        "what": about.what,
        "samples": about.samples,
        "classes": about.classes,
        "natural_clients": about.natural_clients,
        "path": cls.located() or "",
        "get": "" if cls.located() else _get(cls),
    }


def _entry(row: dict[str, str], names: int, width: int) -> str:
    """Return what `list` shows of one source: its name, and beside it a fact a line.

    A path or a command is never cut, so that it can be copied.
    """
    size = f"train / test: {row['samples']}; {row['classes']} classes"
    clients = "" if row["natural_clients"] == "-" else f"; from {row['natural_clients']}"
    facts = [
        row["what"],
        "" if row["samples"] == "yours" else size + clients,
        f"here: {row['path']}" if row["path"] else f"to have it: {row['get']}",
    ]
    left = " " * (names + 2)
    lines = [
        textwrap.fill(
            fact,
            width,
            initial_indent=left,
            subsequent_indent=f"{left}  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for fact in facts
        if fact
    ]
    return row["name"] + "\n".join(lines)[len(row["name"]) :]


def _get(cls: type[Source]) -> str:
    from fedtail.data.public import PublicSource

    fetched = issubclass(cls, PublicSource) and cls.archives
    return f"fedtail data fetch {cls.name}" if fetched else cls.advice()


def _describe(source: Source, console: Console) -> None:
    from fedtail.data.texts import Texts

    dataset = source.load()
    counts = dataset.train.y.bincount(minlength=dataset.num_classes).tolist()
    console.print(f"  samples: {len(dataset.train):,} train, {len(dataset.test):,} test")
    if isinstance(dataset.train.x, Texts):
        console.print("  input: texts, for a pretrained model that reads them (hf:NAME)")
    else:
        kind = str(dataset.train.x.dtype).removeprefix("torch.")
        console.print(f"  input: {_shape(dataset)}, {kind}{_rate(dataset)}")
        console.print(f"  model: {source.model_for(dataset)} unless you name one")
    console.print(f"  clients: {_clients(dataset)}")
    rarest = min(count for count in counts if count)
    console.print(f"  classes: {dataset.num_classes}, imbalance {max(counts) / rarest:.4g}")
    for name, count in zip(dataset.classes, counts, strict=True):
        console.print(f"    {count:>8,}  {name}")


def _shape(dataset: Dataset) -> str:
    return "x".join(str(size) for size in dataset.input_shape)


def _rate(dataset: Dataset) -> str:
    return f", sound of {dataset.given.rate:,} samples a second" if dataset.given.rate else ""


def _clients(dataset: Dataset) -> str:
    if dataset.client_train is None:
        return "none by nature"
    return f"{len(set(dataset.client_train.tolist())):,} with training data"
