"""How much memory this process may use."""

from __future__ import annotations

from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup/memory.max")
"""What a container may use at most, or ``max``."""


def memory() -> int:
    """Return the bytes of this machine's memory, or of the part that a container is given."""
    whole = int(psutil.virtual_memory().total)
    try:
        return min(whole, int(CGROUP.read_text()))
    except (OSError, ValueError):
        return whole
