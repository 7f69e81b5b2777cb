"""`fedtail data`: which data there is, how to get it, and what is in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedtail.data.dataset import Dataset
from fedtail.data.fetch import fetch as fetch_data
from fedtail.data.public import PublicSource
from fedtail.data.sources import Npz, Source

app = typer.Typer(help="list, fetch and describe data sets", no_args_is_help=True)


@app.command("list")
def list_sources(
    as_json: Annotated[bool, typer.Option("--json", help="print a list of objects")] = False,
) -> None:
    """List every data source, and where it is or how to get it."""
    rows = [_row(name) for name in Source.registry]
    if as_json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    table = Table(box=None, pad_edge=False)
    for title in (
        "name",
        "what it is",
        "train / test",
        "classes",
        "natural clients",
        "here, or how to get it",
    ):
        table.add_column(title, overflow="fold")
    for row in rows:
        keys = ("name", "what", "samples", "classes", "natural_clients")
        table.add_row(*(row[key] for key in keys), escape(row["path"] or row["get"]))
    Console().print(table)


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="a public data set, see `fedtail data list`")],
    folder: Annotated[
        Path | None, typer.Option(help="where to put it; default: FEDTAIL_DATA, or a cache")
    ] = None,
    keep_archives: Annotated[
        bool, typer.Option("--keep-archives", help="keep the downloaded files beside the npz")
    ] = False,
) -> None:
    """Get and verify a public data set."""
    print(fetch_data(name, folder, keep_archives=keep_archives))


@app.command()
def info(
    name: Annotated[str, typer.Argument(help="a data source, or the path of an npz file")],
) -> None:
    """Describe a data source and, if its data is here, what is in it."""
    console = Console(soft_wrap=True, highlight=False)
    if name.endswith(".npz"):
        _describe(Npz(path=name), console)
        return
    cls = Source.registry[name]
    console.print(f"{name}: {cls.about.what}")
    for field, details in cls.model_fields.items():
        default = "required" if details.is_required() else f"default {details.default}"
        console.print(f"  data.{field} ({default}): {details.description}", markup=False)
    required = any(details.is_required() for details in cls.model_fields.values())
    if cls.located() is None or required:
        console.print(f"  to have it: {cls.advice()}", markup=False)
        return
    console.print(f"  here: {cls.located()}", markup=False)
    _describe(cls(), console)


def _row(name: str) -> dict[str, str]:
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


def _get(cls: type[Source]) -> str:
    fetched = issubclass(cls, PublicSource) and cls.archives
    return f"fedtail data fetch {cls.name}" if fetched else cls.advice()


def _describe(source: Source, console: Console) -> None:
    dataset = source.load()
    counts = dataset.train.y.bincount(minlength=dataset.num_classes).tolist()
    console.print(f"  samples: {len(dataset.train):,} train, {len(dataset.test):,} test")
    console.print(
        f"  input: {_shape(dataset)}, {str(dataset.train.x.dtype).removeprefix('torch.')}"
    )
    console.print(f"  model: {source.model_for(dataset)} unless you name one")
    console.print(f"  clients: {_clients(dataset)}")
    rarest = min(count for count in counts if count)
    console.print(f"  classes: {dataset.num_classes}, imbalance {max(counts) / rarest:.4g}")
    for name, count in zip(dataset.classes, counts, strict=True):
        console.print(f"    {count:>8,}  {name}", markup=False)


def _shape(dataset: Dataset) -> str:
    return "x".join(str(size) for size in dataset.input_shape)


def _clients(dataset: Dataset) -> str:
    if dataset.client_train is None:
        return "none by nature"
    return f"{len(set(dataset.client_train.tolist())):,} with training data"
