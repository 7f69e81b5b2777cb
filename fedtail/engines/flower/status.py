"""What the server app and the launcher tell each other, by files in the run folder.

Both are on one machine. ``flower/server.json`` says which process the server is and how it ended,
``flower/exchanges.jsonl`` is the journal, ``flower/warnings.log`` what was odd.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtail.callbacks import Callback
from fedtail.errors import FedtailError, RunStopped
from fedtail.files import append_line, make_folder, remove, write_atomic
from fedtail.plugins import first_line_and_place


@dataclass(frozen=True)
class StatusFiles:
    """The files of one run."""

    run: Path

    @property
    def folder(self) -> Path:
        """Where they are, with the logs of all processes."""
        return self.run / "flower"

    @property
    def journal(self) -> Path:
        """One JSON object an exchange."""
        return self.folder / "exchanges.jsonl"

    @property
    def warnings(self) -> Path:
        """One line a warning."""
        return self.folder / "warnings.log"

    def clear(self) -> None:
        """Forget how the run ended before, and make the folder."""
        make_folder(self.folder)
        remove(self.folder / "server.json")
        remove(self.warnings)

    def forget_logs(self) -> None:
        """Remove what Flower's processes printed: it says which node was asked when."""
        for path in self.folder.glob("*.log"):
            if path != self.warnings:
                remove(path)

    def warn(self, message: str) -> None:
        """Write a warning."""
        append_line(self.warnings, " ".join(message.split()))

    @contextmanager
    def attended(self) -> Iterator[None]:
        """Say that the server is this process, and afterwards how it ended."""
        self._say(ended="")
        try:
            yield
        except (FedtailError, RunStopped) as error:
            self._say(ended=type(error).__name__, reason=str(error))
            raise
        except BaseException as error:
            trace = "".join(traceback.format_exception(error)).rstrip()
            self._say(ended="bug", reason=first_line_and_place(error), trace=trace)
            raise
        self._say(ended="well")

    def read(self) -> dict[str, Any]:
        """Return what the server said last: ``pid``, ``ended`` and ``reason``, or nothing yet."""
        try:
            said: dict[str, Any] = json.loads((self.folder / "server.json").read_bytes())
        except FileNotFoundError:
            return {}
        return said

    def _say(self, **words: str) -> None:
        content = json.dumps({"pid": os.getpid(), "reason": "", **words})
        write_atomic(self.folder / "server.json", content)


@dataclass(frozen=True)
class ForwardWarnings(Callback):
    """Lets the launcher know what the loop warns of."""

    status: StatusFiles

    def on_warning(self, message: str) -> None:
        """Pass it on."""
        self.status.warn(message)
