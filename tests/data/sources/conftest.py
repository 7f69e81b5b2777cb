from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty data folder that every source looks in."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("FEDTAIL_DATA", str(folder))
    return folder
