"""One thread for every test: more change the last bits, and tests share the machine.

The file also puts this folder on the import path, so that tests (and the worker processes they
start) find `tiny`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
