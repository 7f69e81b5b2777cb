"""A method as it stands in one word: ``fedavg,loss=balanced_softmax,local.lr=0.1``."""

from __future__ import annotations

import hashlib

LONGEST = 120
"""Letters of a folder's name; file systems allow 255, and a user has to read it."""


def split_spec(spec: str) -> list[str]:
    """Return the method's name and its ``field=value`` words.

    A comma inside brackets or quotes belongs to the value: ``local.schedule.at=[0.5,0.8]``.
    """
    parts, depth, quote = [""], 0, ""
    for letter in spec:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "[{":
            depth += 1
        elif letter in "]}":
            depth -= 1
        elif letter == "," and depth <= 0:
            parts.append("")
            continue
        parts[-1] += letter
    return [part.strip() for part in parts]


def folder_name(spec: str, seed: int) -> str:
    """Return a name for the run's folder that is safe in any file system."""
    safe = "".join(c if c.isalnum() or c in "-._=" else "-" for c in spec)
    if len(safe) > LONGEST:
        safe = f"{safe[:LONGEST]}-{hashlib.sha256(spec.encode()).hexdigest()[:8]}"
    return f"{safe}-seed{seed}"
