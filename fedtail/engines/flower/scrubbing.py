"""What a client may say of its own failures: enough to find the place, nothing of the data.

The text of an exception can hold samples, file names or labels, so it stays in the client's own
log. What leaves the client is the kind of the error and the line that raised it.
"""

from __future__ import annotations

import traceback
from pathlib import Path

from fedtail.errors import FedtailError


class PublicError(FedtailError):
    """An error whose text says nothing about data, and may leave the client as it is."""


def scrubbed(error: BaseException) -> str:
    """Return what the server is told of an error."""
    if isinstance(error, PublicError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}{place}; the client's own log has the text"
