"""Freed memory is kept for the next batch and given back after a run, where glibc is used."""

from __future__ import annotations

import ctypes
import gc
import os
from functools import cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Which limits `mallopt` is told, by their numbers in malloc.h."""
KEPT_BYTES = 512 << 20
"""Bytes that nobody uses and that still are not given back."""
OWN_PAGES = 32 << 20
"""From how many bytes on a block gets pages of its own: glibc goes up to there by itself."""
MALLOC_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
"""Who has set one of these has decided already."""


@cache
def keep_freed_memory() -> None:
    """Have this process keep some of the memory that it frees. No bit of a result changes.

    The activations of a batch are freed at once, and glibc gives the end of its heap back to the
    system; the next batch then takes a page fault for every four kilobytes, which is a fifth of
    the time of a small network. Other systems, and allocators that were loaded in the place of
    glibc's, are left as they are.
    """
    if any(name in os.environ for name in MALLOC_VARIABLES):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl or macOS, no symbols, Windows
        return
    mallopt(M_MMAP_THRESHOLD, OWN_PAGES)
    mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def give_back() -> None:
    """Give what the last run had to the system: arrays of the next one rarely fit into its gaps."""
    gc.collect()  # models and engines know each other
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):
        return
