"""Bytes for people. The papers' GB is 2³⁰ bytes, and so is ours."""

from __future__ import annotations

GB = 2**30
"""Bytes in a gigabyte: the reading under which BalanceFL's Table 2 comes out whole."""

_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")


def gigabytes(nbytes: int) -> float:
    """Return bytes in units of 2³⁰."""
    return nbytes / GB


def checkpoint_traffic(rounds: int, clients: int, checkpoint_bytes: int) -> int:
    """Return BalanceFL's traffic of a run: each client gets and sends one checkpoint a round."""
    return rounds * clients * 2 * checkpoint_bytes


def human_bytes(nbytes: int) -> str:
    """Return bytes in the largest unit (steps of 1024) that leaves at least 1.

    Examples
    --------
    >>> human_bytes(1536)
    '1.5 KB'
    >>> human_bytes(1000)
    '1000 B'
    """
    power = min(max(int(nbytes).bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    digits = 1 if power else 0
    return f"{nbytes / 1024**power:.{digits}f} {_UNITS[power]}"
