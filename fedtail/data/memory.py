"""How much memory this process may use."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup/memory.max")
"""What a container may use at most, or ``max``."""
UNKNOWN = 2**40
"""Where the system does not say how much memory it has, one terabyte counts as too much."""


def memory() -> int:
    """Return the bytes of this machine's memory, or of the part that a container is given."""
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        whole = UNKNOWN
    try:
        return min(whole, int(CGROUP.read_text()))
    except (OSError, ValueError):
        return whole
