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


def safe_name(text: str) -> str:
    """Return a name for a folder that is safe in any file system."""
    safe = "".join(c if c.isalnum() or c in "-._=" else "-" for c in text)
    if len(safe) > LONGEST:
        safe = f"{safe[:LONGEST]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return safe


def folder_name(spec: str, seed: int) -> str:
    """Return the name of a run's folder among those of other methods and seeds."""
    return f"{safe_name(spec)}-seed{seed}"
