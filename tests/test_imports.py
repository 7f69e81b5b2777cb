"""What an import costs: whoever needs one part does not load the others."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import fedtail
from fedtail import public

UNUSED = ("fedtail.report", "flwr", "http.server", "matplotlib", "scipy", "sklearn")
"""What neither describing nor running an experiment needs, until the run is over."""
HEAVY = ("torch", "numpy", "pydantic", *UNUSED)
"""What the command line must not wait for before it knows what it is asked."""


def loaded(statement: str) -> list[str]:
    """Return the modules that are there after a statement in a fresh process."""
    code = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names: list[str] = json.loads(done.stdout)
    return names


def among(names: list[str], unwanted: tuple[str, ...]) -> list[str]:
    """Return those that are unwanted, or are inside of what is."""
    return [name for name in names if f"{name}.".startswith(tuple(f"{u}." for u in unwanted))]


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import fedtail", (*HEAVY, "rich", "typer")),
        ("import fedtail.cli", HEAVY),
        # What Flower starts for every message.
        ("import fedtail.engines.flower.node", ("torch", "pydantic", "sklearn", "scipy")),
        ("from fedtail.engines.flower import client_app", ("torch", "pydantic", "sklearn")),
        ("from fedtail import *", (*UNUSED, "typer")),
    ],
)
def test_an_import_loads_no_more_than_it_needs(statement: str, unwanted: tuple[str, ...]) -> None:
    assert among(loaded(statement), unwanted) == []


def test_every_public_name_is_found_when_it_is_asked_for() -> None:
    for name in public.__all__:
        assert getattr(fedtail, name) is getattr(public, name)
    assert set(dir(fedtail)) == {*public.__all__, "__version__"}


def test_no_other_name_is_there() -> None:
    with pytest.raises(AttributeError, match="module 'fedtail' has no attribute 'Nothing'"):
        getattr(fedtail, "Nothing")  # noqa: B009 - a type checker knows better
