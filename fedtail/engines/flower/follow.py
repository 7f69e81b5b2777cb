"""A run in another process, watched through its folder."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedtail.callbacks import Callback, read_records
from fedtail.engines.flower.status import StatusFiles
from fedtail.folder import RunFolder

logger = logging.getLogger("fedtail")


class RunFollower:
    """Tells callbacks what is new in a run folder.

    Parameters
    ----------
    folder
        The run.
    callbacks
        Who is told.
    done
        How many rounds they know of already.
    """

    def __init__(self, folder: RunFolder, callbacks: Sequence[Callback], done: int = 0) -> None:
        self.folder = folder
        self.callbacks = callbacks
        self.done = done
        self._warned: set[str] = set()

    def look(self) -> None:
        """Look once."""
        if self.folder.metrics.exists():
            for record in read_records(self.folder.metrics):
                number = record["round"]
                if number <= self.done:
                    continue
                self.done = number
                self.warn(
                    f"round {number}: {who} is left out: {reason}"
                    for who, reason in map(_left_out, record["dropped"])
                )
                for callback in self.callbacks:
                    callback.on_round(record)
        log = StatusFiles(self.folder.path).warnings
        if log.exists():
            self.warn(log.read_text(encoding="utf-8").splitlines())

    def warn(self, messages: Iterable[str]) -> None:
        """Pass on each warning once."""
        for message in messages:
            if message not in self._warned:
                self._warned.add(message)
                logger.warning("%s", message)
                for callback in self.callbacks:
                    callback.on_warning(message)


def _left_out(dropped: Mapping[str, Any]) -> tuple[str, str]:
    name = dropped.get("name", dropped.get("client"))
    return "a client" if name is None else f"client {name}", dropped["reason"]
