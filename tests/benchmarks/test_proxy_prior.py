"""What GBME's page says of the proxy prior is what was measured."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import proxy_prior
from benchmarks.results_file import RESULTS

PAGE = Path(__file__).parents[2] / "docs" / "methods" / "gbme.md"


def test_the_page_has_the_distances() -> None:
    numbers = json.loads((RESULTS / "proxy_prior.json").read_text())["numbers"]
    assert proxy_prior.table(numbers) in PAGE.read_text(encoding="utf-8")
    # The reason of the default: nowhere worse, up to what is rounded.
    for found in numbers.values():
        assert found["bias"]["distance"] <= found["rows"]["distance"] + 0.001
