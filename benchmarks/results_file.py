"""Where measured numbers go: small JSON files, with the command and the commit that made them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedtail.files import make_folder, write_atomic
from fedtail.folder import environment

RESULTS = Path(__file__).parent / "results"


def save(name: str, numbers: Mapping[str, Any]) -> None:
    """Write the numbers beside the environment they were measured in, and print them."""
    make_folder(RESULTS)
    facts = {**environment(), "command": f"python -m benchmarks.{name}"}
    text = json.dumps({"numbers": numbers, "environment": facts}, indent=1)
    write_atomic(RESULTS / f"{name}.json", text + "\n")
    print(json.dumps(numbers, indent=1))
