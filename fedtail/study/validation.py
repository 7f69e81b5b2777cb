"""The score by which something may be chosen: that of the samples that clients hold out."""

from __future__ import annotations

from fedtail.callbacks import Record


def validation_score(record: Record) -> float | None:
    """Return the balanced accuracy on the clients' held-out samples; nothing if there is none."""
    found = record.get("validation") or {}
    score = found.get("balanced_accuracy")
    return None if score is None else float(score)
