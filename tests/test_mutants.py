"""The mutation run: what it changes, what it leaves alone, and its list of accepted survivors."""

from __future__ import annotations

import ast

import pytest
from mutants import FOLDERS, Mutant, changes, functions, mutants, places, sources
from mutation import accepted

SOURCE = '''
def f(x, n):
    """Docstring with 1 + 1."""
    if n < 2:
        raise ValueError(f"{n} + 1 is too few")
    x = x.clamp(min=0)
    log(x)
    return x.mean() if n else g(x, -n) * 3
'''


def test_what_is_changed() -> None:
    ((name, function),) = functions(ast.parse(SOURCE))
    found = {
        f"{ast.unparse(node)} -> {ast.unparse(new) if new else ''}"
        for node, parent, field, _ in places(function)
        for new in changes(node, parent, field)
    }
    assert name == "f"
    assert found == {
        *("n < 2 -> True", "n < 2 -> False", "n < 2 -> n <= 2", "2 -> 3"),
        *("x = x.clamp(min=0) -> ", "min=0 -> ", "0 -> 1", "log(x) -> "),
        *("x.clamp(min=0) -> x", "x.mean() -> x", "x.mean -> x.sum", "n -> True", "n -> False"),
        *("g(x, -n) * 3 -> g(x, -n) / 3", "g(x, -n) -> g(x)", "g(x, -n) -> g(-n, x)"),
        *("-n -> n", "3 -> 4"),
    }


def of(file: str) -> dict[str, Mutant]:
    found = mutants(file)
    named = {mutant.key: mutant for mutant in found}
    assert len(named) == len(found)  # a key is of one mutant alone
    return named


def test_a_mutant_is_the_function_with_one_change() -> None:
    (one,) = [m for key, m in of("losses/cross_entropy.py").items() if "(output.logits)" in key]
    assert one.function == "CrossEntropy.__call__"
    assert one.code().co_qualname == one.function


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_accepted_survivor_is_still_a_mutant(folder: str) -> None:
    known = {key for key in accepted() if key.startswith(f"{folder}/")}
    files = {key.partition("::")[0] for key in known}
    assert files <= set(sources())
    assert known <= {key for file in files for key in of(file)}


def test_every_accepted_survivor_has_a_reason() -> None:
    assert all(len(reason) > 20 for reason in accepted().values())
