"""`fedtail methods`: what there is, and what its hyper-parameters mean."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedtail.config import Config
from fedtail.methods import Method


def methods(
    name: Annotated[str | None, typer.Argument(help="show one method's hyper-parameters")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="as JSON, for programs")] = False,
) -> None:
    """List the methods, or show one with its hyper-parameters and their meaning."""
    classes = [Method.registry[n] for n in ([name] if name else Method.registry)]
    if as_json:
        print(json.dumps([facts(cls) for cls in classes], indent=1))
    elif name:
        show_one(classes[0])
    else:
        show_all(classes)


def facts(cls: type[Method[Any]]) -> dict[str, Any]:
    """Return what is known of a method, as plain data."""
    return {
        "name": cls.name,
        "family": cls.family,
        "paper": cls.paper,
        "summary": _first_line(cls),
        "needs": list(cls.needs),
        "traffic": cls.traffic,
        "parameters": parameters(cls),
    }


def parameters(cls: type[Config], prefix: str = "") -> list[dict[str, Any]]:
    """Return the hyper-parameters, with those of the parts inside them."""
    found = []
    for name, field in cls.model_fields.items():
        default = field.default
        if isinstance(default, Config) and not default.describe().get("name"):
            found += parameters(type(default), f"{prefix}{name}.")
            continue
        plain = default.describe()["name"] if isinstance(default, Config) else default
        found.append({"name": f"{prefix}{name}", "default": plain, "meaning": field.description})
    return found


def show_all(classes: list[type[Method[Any]]]) -> None:
    """Print a line a method."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("method", "family", "what it does", "needs", "extra traffic"):
        table.add_column(heading)
    for cls in sorted(classes, key=lambda c: (c.family, c.name)):
        table.add_row(
            cls.name, cls.family, _first_line(cls), ", ".join(cls.needs) or "-", cls.traffic
        )
    Console().print(table)


def show_one(cls: type[Method[Any]]) -> None:
    """Print a method's paper and hyper-parameters."""
    console = Console()
    console.print(f"[bold]{cls.name}[/bold]  {_first_line(cls)}\n{cls.paper}\n", highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("field", "default", "meaning"):
        table.add_column(heading)
    for row in parameters(cls):
        default = "-" if row["default"] is None else str(row["default"])
        table.add_row(f"method.{row['name']}", default, row["meaning"])
    console.print(table)


def _first_line(cls: type) -> str:
    return (cls.__doc__ or "").strip().split("\n")[0]
