"""One name, one meaning: a reader who has seen a public name once knows what it is."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import fedtail

ROOT = Path(fedtail.__file__).parent
ALLOWED = {
    "EXAMPLES": "of each command, found under one name by the module that puts commands together",
    "logger": "of each module that logs, as everywhere in Python",
}
"""Names that more than one module may define, and why."""


def defined(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements of a module define, without imports and type variables."""
    for node in body:
        match node:
            case ast.ClassDef() | ast.FunctionDef():
                yield node.name
            case ast.Assign():
                for target in node.targets:
                    yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.If() | ast.Try():
                yield from defined([*node.body, *node.orelse])


def test_no_public_name_is_defined_in_two_modules() -> None:
    places: dict[str, set[str]] = defaultdict(set)
    for path in ROOT.rglob("*.py"):
        for name in defined(ast.parse(path.read_text(encoding="utf-8")).body):
            if not name.startswith("_") and len(name) > 1:  # one letter: a type variable
                places[name].add(str(path.relative_to(ROOT)))
    twice = {name: sorted(where) for name, where in places.items() if len(where) > 1}
    assert {name: where for name, where in twice.items() if name not in ALLOWED} == {}


def test_the_names_are_looked_for() -> None:
    code = (
        "import a\nclass B:\n    c = 1\ndef d(): e = 1\nF, G = 1, 2\nh: int = 3\nif F:\n    I = 4\n"
    )
    assert list(defined(ast.parse(code).body)) == ["B", "d", "F", "G", "h", "I"]
