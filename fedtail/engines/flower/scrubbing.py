"""What a client may say of its own failures: enough to find the place, nothing of the data.

The text of an exception can hold samples, file names or labels, so it stays in the client's own
log. What leaves the client is the kind of the error and the line that raised it. No PyTorch here.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from fedtail.engines.flower.records import Content
from fedtail.errors import FedtailError

logger = logging.getLogger(__name__)


class PublicError(FedtailError):
    """An error whose text says nothing about data, and may leave the client as it is."""


def scrubbed(error: BaseException) -> str:
    """Return what the server is told of an error."""
    if isinstance(error, PublicError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}{place}; the client's own log has the text"


def complain(error: Exception) -> None:
    """Put the whole error into this client's own log, which Flower makes of standard error."""
    logger.error("a task failed", exc_info=error)
    sys.stderr.flush()


def reply(answer: Callable[[], Content]) -> Content:
    """Return an answer, or the one that says why there is none.

    Whatever goes wrong, the server hears of it, and the process goes on.
    """
    try:
        return answer()
    except Exception as error:
        complain(error)
        notes = {"kind": "failed", "reason": scrubbed(error), "payloads": []}
        return {}, json.dumps(notes)
