"""`fedtail check`: whether a method keeps the promises that fedtail's own methods keep."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtail.cli.options import known
from fedtail.errors import FedtailError
from fedtail.plugins import load_plugins, registered_by

if TYPE_CHECKING:
    from fedtail.testing import Case

EXAMPLES = """Examples:

fedtail check my_method.py

fedtail check my_method.py --method my-method method.steps=2 --workers
"""


def check(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PLUGIN] [KEY=VALUE]...",
            help="a Python file or module with methods; fields that make them quick",
            show_default=False,
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="check this method; by default all of the plug-in",
            autocompletion=known("method"),
        ),
    ] = None,
    workers: Annotated[
        bool, typer.Option("--workers", help="also with worker processes, which takes seconds")
    ] = False,
) -> None:
    """Hold a method of your own to the promises that fedtail's own methods keep.

    It is trained for a few seconds on six clients with a class that nobody has, a client with one
    class and one with a single sample.
    """
    from fedtail.methods import Method
    from fedtail.testing import Case

    plugins = [word for word in words or [] if "=" not in word]
    load_plugins(plugins)
    fields, settings = _overrides([word for word in words or [] if "=" in word])
    cases = [
        Case(Method.registry[name], fields, {"plugins": tuple(plugins), **settings})
        for name in _names(plugins, method or [])
    ]
    if sum([_checked(case, workers) for case in cases]):
        raise typer.Exit(1)


def _names(plugins: list[str], asked: list[str]) -> list[str]:
    from fedtail.methods import Method

    found = asked or [name for p in plugins for name in registered_by(p, Method.registry)]
    if not found:
        said = f"plug-in '{plugins[0]}' registers no method" if plugins else "nothing to check"
        raise FedtailError(f"{said}: name a plug-in, or a method with --method NAME")
    return found


def _overrides(words: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return fields of the method, and of the experiment."""
    from fedtail.described import override, parse_overrides

    plain: dict[str, Any] = {"method": {}}
    for path, value in parse_overrides(words):
        override(plain, path, value)
    return plain.pop("method"), plain


def _checked(case: Case, workers: bool) -> int:
    """Print a line a check, and return how many failed."""
    from fedtail.testing import CHECKS, outcomes

    print(f"{case.method.name} ({case.method.__name__})")
    promises = {check.name: check.promise for check in CHECKS}
    count: dict[str, int] = defaultdict(int)
    for outcome in outcomes(case, workers):
        count[outcome.kept] += 1
        word = {"yes": "ok", "no": "FAIL", "refused": "refused"}[outcome.kept]
        on = f"{outcome.check} ({outcome.model})"
        print(f"  {word:<8}{on}")
        if outcome.sentence:
            print(f"          {outcome.sentence}")
        if outcome.kept == "no":
            print(f"          promised: {promises[outcome.check]}")
    print(f"{count['yes']} kept, {count['no']} not\n")
    return count["no"]
