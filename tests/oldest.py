"""The oldest versions that `pyproject.toml` allows, as constraints for pip: for `make test-oldest`.

PyTorch stays at the version of `constraints.txt`, whose build for CPUs is at hand.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def oldest() -> list[str]:
    """Return a line for each package that fedtail itself asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bounds = [re.fullmatch(r"([\w-]+)>=([\d.]+)", asked) for asked in project["dependencies"]]
    lines = [
        f"{found[1]}=={found[2] if '.' in found[2] else f'{found[2]}.0'}.*"
        for found in bounds
        if found and found[1] != "torch"
    ]
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return lines + [line for line in pinned if line.startswith("torch==")]


if __name__ == "__main__":
    print("\n".join(oldest()))
