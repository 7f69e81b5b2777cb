from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.masks import measure


@pytest.mark.parametrize(("width", "lost"), [(32, 0), (64, 1)])
def test_the_table_is_measured_on_real_members(width: int, lost: int, tmp_path: Path) -> None:
    # The sum is checked in there.
    found = measure(4, 1000, width, lost, tmp_path)
    assert found["vector_bytes"] == 1000 * width // 8
    assert found["other_bytes_per_client"] < 10_000
    assert min(found[name] for name in found if name.endswith("ms")) >= 0
