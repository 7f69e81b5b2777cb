"""The run as it goes: a live display in a terminal, plain lines anywhere else."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.text import Text
from torch import Tensor

from fedtail.callbacks.base import Callback, Record, RunInfo
from fedtail.callbacks.jsonl import read_records
from fedtail.metrics.curves import traffic
from fedtail.metrics.traffic import human_bytes
from fedtail.output import safe_stream

SHOWN = ("accuracy", "many", "medium", "few")
"""The scores that are shown."""


class _Shown(logging.Handler):
    """Hands what is logged to who shows it."""

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        self._show(record.getMessage())


class Progress(Callback):
    """Show the round, the time left, the accuracy (all, many, medium, few) and the traffic.

    Where there is no terminal, rounds faster than one a second are thinned out, but the last one
    is always shown. A warning is shown once, whether it came as such or through the logger
    ``fedtail``; while a run is shown, nobody else need print what is logged.

    Parameters
    ----------
    console
        Where to print; standard output if not given.
    clock
        Seconds from any origin.
    warned
        Warnings that were shown already, such as those of an earlier run of a study; added to.
    """

    every = 1.0

    def __init__(
        self,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        warned: set[str] | None = None,
    ) -> None:
        stream = safe_stream(sys.stdout)
        # Asked of the stream itself: rich takes FORCE_COLOR, common in CI, for a terminal.
        self.console = console or Console(file=stream, force_terminal=stream.isatty())
        self._clock = clock
        self._live: Live | None = None
        self._warned = set() if warned is None else warned
        self._pending: str | None = None
        self._logged = _Shown(self.on_warning)

    def listen(self) -> None:
        """Show what is logged, from now until it is closed."""
        logging.getLogger("fedtail").addHandler(self._logged)

    def on_start(self, info: RunInfo) -> None:
        """Open the display."""
        self.listen()
        self._info = info
        self._bytes = _bytes_before(info)
        self._started = self._round_at = self._clock()
        self._printed_at = float("-inf")
        self._round = info.done
        self._scores = ""
        self._last: Record = {}
        once = f", {info.features}" if info.features else ""
        if self.console.is_terminal and not self.console.is_dumb_terminal:
            if once:
                self._print(f"{info.name}{once}")
            self._open()
        else:
            self._print(f"{info.name}: {info.rounds} rounds{_from(info.done)}{once}")

    def on_round(self, record: Record) -> None:
        """Show the round."""
        self._round, self._round_at = record["round"], self._clock()
        self._bytes += traffic(record)
        self._last = record
        shown = (_scores(record), _validated(record, self._score), _budget(record))
        scores = "  ".join(part for part in shown if part)
        if self._live is not None:
            self._scores = scores or self._scores
            self._bar.update(self._task, completed=self._round)
            return
        parts = [f"round {self._round}/{self._info.rounds}", scores, self._footer()]
        self._pending = "  ".join(part for part in parts if part)
        due = self._round_at - self._printed_at >= self.every
        if due or self._round >= self._info.rounds:
            self._printed_at = self._round_at
            self._flush()

    def on_warning(self, message: str) -> None:
        """Show a warning, the first time it is given; it may come before the start."""
        self.listen()
        if message not in self._warned:
            self._warned.add(message)
            self._print(f"warning: {message}")

    def on_end(self, record: Record, model: Mapping[str, Tensor]) -> None:
        """Say why it ended, which round is shipped, and how it does client by client."""
        self._flush()
        for line in ending(record, self._last or record, self._score):
            self._print(line)

    @property
    def _score(self) -> str:
        """The validation score that rounds are compared by."""
        return str(self._info.settings.get("score", "balanced_accuracy"))

    def close(self) -> None:
        """Show what was held back and close the display."""
        logging.getLogger("fedtail").removeHandler(self._logged)
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._flush()

    def _open(self) -> None:
        self._bar = Bar(
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
        )
        info = self._info
        self._task = self._bar.add_task(info.name, total=info.rounds, completed=info.done)
        self._live = Live(console=self.console, get_renderable=self._display, refresh_per_second=4)
        self._live.start()

    def _display(self) -> RenderableType:
        parts = [self._scores, self._footer()]
        return Group(self._bar, Text("  ".join(part for part in parts if part)))

    def _footer(self) -> str:
        left = self._seconds_left()
        time_left = "" if left is None else f"  {human_seconds(left)} left"
        return f"traffic {human_bytes(self._bytes)}{time_left}"

    def _seconds_left(self) -> float | None:
        """Return the mean of the rounds since the start times those to come, counting down."""
        done = self._round - self._info.done
        if done <= 0:
            return None
        mean = (self._round_at - self._started) / done
        since = self._clock() - self._round_at
        return max(0.0, mean * (self._info.rounds - self._round) - since)

    def _flush(self) -> None:
        if self._pending is not None:
            self._print(self._pending)
            self._pending = None

    def _print(self, line: str) -> None:
        # Soft wrap, because a log line is one line however wide the console believes it is.
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


def ending(shipped: Record, last: Record, score: str) -> list[str]:
    """Return what is to be said of a run that came to its end, beyond its scores.

    Parameters
    ----------
    shipped, last
        The record of the round whose model is shipped, and of the last one.
    score
        The validation score that rounds are compared by.
    """
    lines = []
    if last.get("stopped"):
        lines.append(f"stopped after round {last['round']}: {last['stopped']}")
    if "kept" in (last.get("validation") or {}):
        value = shipped["validation"][score]
        lines.append(f"round {shipped['round']} is shipped: validation {score} {value:.4f}")
    if last.get("privacy"):
        lines.append(promised(last["privacy"]))
    spread = (shipped.get("clients_test") or {}).get("spread")
    if spread:
        least, _, median, _, greatest = spread
        worst = shipped["clients_test"]["worst"]
        lines.append(
            f"accuracy by client: {least:.4f} (worst, {worst}) to {greatest:.4f}, "
            f"median {median:.4f}"
        )
    return lines


def human_seconds(seconds: float) -> str:
    """Return a duration for people: ``42 s``, ``3 min 05 s``, ``2 h 07 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _scores(record: Record) -> str:
    return "  ".join(f"{key} {record[key]:.4f}" for key in SHOWN if record.get(key) is not None)


def _validated(record: Record, score: str) -> str:
    """Return the score on what is held out, if the round was validated."""
    value = (record.get("validation") or {}).get(score)
    return "" if value is None else f"validation {value:.4f}"


def _budget(record: Record) -> str:
    """Return what of the privacy budget is spent, if there is one."""
    spent = record.get("privacy")
    if not spent:
        return ""
    simulated = " (simulated)" if spent["simulated"] else ""
    return f"epsilon {spent['epsilon']:.3g} of {spent['budget']:g}{simulated}"


def promised(spent: Mapping[str, Any]) -> str:
    """Return what a run promises its clients, in a line."""
    told = {"replace": "whose data are replaced", "remove": "who is left out"}
    line = (
        f"privacy: epsilon {spent['epsilon']:.3g} at delta {spent['delta']:g} for a client "
        f"{told[spent['neighbours']]}; {spent['epsilon_if_known']:.3g} towards whoever knows who "
        "was asked, as the server does"
    )
    simulated = " (simulated: the noise follows from the seed and protects nobody)"
    return line + (simulated if spent["simulated"] else "")


def _from(done: int) -> str:
    return f", continued after round {done}" if done else ""


def _bytes_before(info: RunInfo) -> int:
    """Return the traffic of the rounds done before a resume."""
    if info.folder is None or not info.done:
        return 0
    return sum(map(traffic, read_records(info.folder / "metrics.jsonl", until=info.done)))
