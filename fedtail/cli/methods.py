"""`fedtail methods`: what there is, and what its hyper-parameters mean."""

from __future__ import annotations

import inspect
import json
import sys
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer
from rich.markup import escape
from rich.table import Table

from fedtail.cli.options import Plugins, known
from fedtail.cli.tables import make_console
from fedtail.plugins import load_installed, load_plugins

if TYPE_CHECKING:
    from fedtail.config import Component, Config
    from fedtail.methods import Method


def methods(
    name: Annotated[
        str | None,
        typer.Argument(
            help="show this method's hyper-parameters",
            show_default=False,
            autocompletion=known("method"),
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="as JSON, for programs")] = False,
    plugin: Plugins = None,
) -> None:
    """List the methods, or show one with its hyper-parameters and their meaning."""
    from fedtail.methods import Method

    load_plugins(plugin or [])
    if name is None:
        for sentence in load_installed():
            print(f"warning: {sentence}", file=sys.stderr)
    classes = [Method.registry[n] for n in ([name] if name else Method.registry)]
    if as_json:
        print(json.dumps([facts(cls) for cls in classes], indent=1, ensure_ascii=False))
    elif name:
        show_one(classes[0])
    else:
        show_all(classes)


def facts(cls: type[Method[Any]]) -> dict[str, Any]:
    """Return what is known of a method, as plain data."""
    from fedtail.engines.together import can_train_together

    return {
        "name": cls.name,
        "family": cls.family,
        "paper": cls.paper,
        "summary": _first_line(cls),
        "needs": list(cls.needs),
        "traffic": cls.traffic,
        "together": can_train_together(cls),
        "parameters": parameters(cls),
    }


def parameters(
    cls: type[Config], prefix: str = "", values: Config | None = None
) -> list[dict[str, Any]]:
    """Return the hyper-parameters, with those of the parts inside them.

    Parameters
    ----------
    values
        What stands for the defaults, where a part is not the one that its class makes.
    """
    from fedtail.config import Component, Config

    found = []
    for name, field in cls.model_fields.items():
        default = field.default if values is None else getattr(values, name)
        if isinstance(default, Component) or not isinstance(default, Config):
            found.append(
                {
                    "name": f"{prefix}{name}",
                    "default": default.name if isinstance(default, Component) else default,
                    "choices": choices(field.annotation),
                    "meaning": field.description,
                }
            )
        if isinstance(default, Config):
            found += parameters(type(default), f"{prefix}{name}.", default)
    return found


def family(annotation: Any) -> type[Component] | None:
    """Return the family of components that a field takes one of, or one or none; else nothing."""
    from fedtail.config import Component

    kinds = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    found = (kind for kind in kinds if inspect.isclass(kind) and issubclass(kind, Component))
    return next(found, None)


def choices(annotation: Any) -> list[str]:
    """Return what a field may be named, where that is a short list; else nothing."""
    if kind := family(annotation):
        return list(kind.registry)
    if get_origin(annotation) is Literal:
        return [str(choice) for choice in get_args(annotation)]
    return []


def show_all(classes: list[type[Method[Any]]]) -> None:
    """Print a line a method."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("method", no_wrap=True)
    table.add_column("family", no_wrap=True)
    table.add_column("what it does")
    for cls in sorted(classes, key=lambda c: (c.family, c.name)):
        table.add_row(*map(escape, (cls.name, cls.family, _first_line(cls))))
    console = make_console()
    console.print(table)
    console.print(
        "\nfedtail methods NAME shows one: its paper, needs, traffic and hyper-parameters.",
        highlight=False,
    )


def show_one(cls: type[Method[Any]]) -> None:
    """Print a method's paper and hyper-parameters."""
    console = make_console()
    console.print(f"[bold]{cls.name}[/bold]  {escape(_first_line(cls))}", highlight=False)
    console.print(cls.paper, highlight=False, markup=False)
    needs = ", ".join(cls.needs) or "nothing beyond FedAvg"
    console.print(f"needs: {needs}; extra traffic: {cls.traffic}", highlight=False, markup=False)
    how = "can train together" if facts(cls)["together"] else "train one by one"
    console.print(f"clients {how}\n", highlight=False, markup=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("field", no_wrap=True)
    table.add_column("default", no_wrap=True)
    table.add_column("meaning")
    for row in parameters(cls):
        default = _shown(row["default"])
        known = f" (one of: {', '.join(row['choices'])})" if row["choices"] else ""
        table.add_row(*map(escape, (f"method.{row['name']}", default, f"{row['meaning']}{known}")))
    console.print(table)
    console.print(
        f"\nset one with: fedtail run --method {cls.name} method.{parameters(cls)[0]['name']}=...",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _shown(default: Any) -> str:
    if isinstance(default, float):
        return f"{default:g}"
    return "-" if default is None else str(default)


def _first_line(cls: type) -> str:
    return (cls.__doc__ or "").strip().split("\n")[0]
