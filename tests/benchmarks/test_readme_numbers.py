"""The README's picture is that of the result files, and its command prints what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from command_line import fedtail

from benchmarks.figures import rare_classes
from benchmarks.results_file import RESULTS

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def scores(name: str) -> dict[str, Any]:
    """Return the scores of a result file by method."""
    found = json.loads((RESULTS / "real" / f"{name}.json").read_text(encoding="utf-8"))
    assert all(row["seeds"] == [0, 1, 2] for row in found["methods"])
    return {row["method"]: row["scores"] for row in found["methods"]}


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    rare_classes.main(["--out", str(tmp_path)])
    assert (tmp_path / "figures" / "rare_classes.png").read_bytes().startswith(b"\x89PNG")
    # The curves are those of the file: the mean of the classes is the accuracy of balanced tests.
    curve = rare_classes.by_class("fashion_mnist")["balancefl"]
    mean = scores("fashion_mnist")["balancefl"]["accuracy"]["mean"]
    assert sum(curve) / 10 == pytest.approx(100 * mean, abs=0.01)


@pytest.mark.slow
def test_the_first_command_prints_what_it_says(tmp_path: Path) -> None:
    block = re.search(r"^fedtail compare (.*?)\n```", README, flags=re.MULTILINE | re.DOTALL)
    assert block is not None
    words = block[1].replace("\\\n", " ").split()
    words[words.index("--out") + 1] = str(tmp_path / "first")
    assert fedtail("compare", *words).code == 0
    rows = json.loads((tmp_path / "first" / "comparison.json").read_text())
    text = README.split("```text\n", 1)[1].split("```", 1)[0]
    lines = [line.partition(" MB")[0] for line in text.splitlines() if " MB" in line]
    keys = ("accuracy", "many", "medium", "few", "worst_class")
    assert len(lines) == len(rows) == 3
    for line, row in zip(lines, rows, strict=True):
        told = [float(number) for number in line.split()[-6:-1]]
        # Another processor rounds differently, so the numbers are held to a few points.
        assert [100 * row["scores"][key]["mean"] for key in keys] == pytest.approx(told, abs=6)
