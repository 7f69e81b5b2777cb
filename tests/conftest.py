"""Every test as if it were alone: one thread, and torch's own stream from one seed.

More threads change the last bits, and tests share the machine. Weights that a test does not draw by
a generator of its own would depend on which tests its worker ran before.

The file also puts this folder on the import path, so that tests (and the worker processes they
start) find `tiny`. It is the only `conftest.py`: mypy takes two of that name for one module.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty data folder that every source looks in."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("FEDTAIL_DATA", str(folder))
    return folder
