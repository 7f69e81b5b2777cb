"""Where measured numbers go: small JSON files, with the command and the commit that made them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedtail.files import make_folder, write_atomic
from fedtail.folder import environment

RESULTS = Path(__file__).parent / "results"


def save(
    name: str, numbers: Mapping[str, Any], folder: Path = RESULTS, file: str | None = None
) -> None:
    """Write the numbers beside the environment they were measured in, and print them.

    Parameters
    ----------
    name
        The module below `benchmarks`; dots are folders.
    numbers
        What was measured, as plain data.
    folder
        Where the file goes.
    file
        The file's name, if it is not the module's: a second protocol of the same benchmark.
    """
    command = " ".join(["python", "-m", f"benchmarks.{name}", *sys.argv[1:]])
    *parents, module = name.split(".")
    path = folder.joinpath(*parents, f"{file or module}.json")
    make_folder(path.parent)
    facts = {**environment(), "command": command}
    write_atomic(path, readable({"numbers": numbers, "environment": facts}) + "\n")
    print(readable(numbers))


def readable(plain: Any) -> str:
    """Return indented JSON with every list of numbers on one line."""
    text = json.dumps(plain, indent=1)
    return re.sub(r"\[[^][{}]*\]", lambda found: re.sub(r"\s*\n\s*", " ", found[0]), text)
