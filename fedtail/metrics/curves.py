"""What a whole run says: the mean of its last rounds, and what it took to reach a target.

A record is one line of ``metrics.jsonl``. Rounds that were not evaluated hold `None` (or nothing)
and are passed over; their traffic still counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

Records = Sequence[Mapping[str, Any]]


def shipped_record(records: Records) -> Mapping[str, Any]:
    """Return the record of the round whose model is shipped: the kept one, or the last.

    With ``keep = "best"`` every validated round says which one is the best so far
    (``validation.kept``).
    """
    last = records[-1]
    kept = (last.get("validation") or {}).get("kept")
    return last if kept is None else next((r for r in records if r["round"] == kept), last)


def last_rounds(records: Records, key: str, n: int = 10) -> tuple[float | None, float | None]:
    """Return mean and standard deviation over the last `n` rounds, as RedGrape reports them.

    The deviation is that of the population of these rounds (divided by their number). Of rounds
    tested every so often only those among the last `n` enter; with none, both are `None`.
    """
    if not records:
        return None, None
    first = records[-1]["round"] - n + 1
    values = [value for _, value in _evaluated(records, key, first)]
    if not values:
        return None, None
    return statistics.fmean(values), statistics.pstdev(values)


def rounds_to(records: Records, key: str, target: float) -> int | None:
    """Return the first round that reaches the target, or `None`."""
    return next((at for at, value in _evaluated(records, key) if value >= target), None)


def bytes_to(records: Records, key: str, target: float) -> int | None:
    """Return the bytes, up and down, until the target was first reached, or `None`."""
    reached = rounds_to(records, key, target)
    if reached is None:
        return None
    return sum(traffic(record) for record in records if record["round"] <= reached)


def rounds_to_own(records: Records, key: str, share: float = 0.98) -> int | None:
    """Return the first round that reaches `share` of the run's own maximum (BalanceFL, Table 2).

    The maximum is the method's own, so a worse method can look cheap: report `rounds_to` a common
    target beside it.
    """
    values = [value for _, value in _evaluated(records, key)]
    return rounds_to(records, key, share * max(values)) if values else None


def traffic(record: Mapping[str, Any]) -> int:
    """Return the bytes of one round, up and down."""
    return int(record.get("bytes_up") or 0) + int(record.get("bytes_down") or 0)


def _evaluated(records: Records, key: str, first: int = 0) -> list[tuple[int, float]]:
    """Return round and value of the rounds from `first` on that have one."""
    return [
        (record["round"], record[key])
        for record in records
        if record["round"] >= first and record.get(key) is not None
    ]
