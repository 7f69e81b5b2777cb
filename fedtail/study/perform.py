"""All runs of a study, one after the other or side by side, and how far it has come."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from fedtail.callbacks import Callback, Progress
from fedtail.callbacks.progress import human_seconds
from fedtail.errors import FedtailError
from fedtail.study.jobs import Hear, side_by_side
from fedtail.study.plan import Planned
from fedtail.study.settle import Ending, Rounds, ended_before, settle

logger = logging.getLogger("fedtail")


def perform(
    plan: Sequence[Planned],
    jobs: int = 1,
    console: Console | None = None,
    hear: Hear = lambda planned, record: True,
    overall: Overall | None = None,
) -> Generator[tuple[Planned, Ending]]:
    """Do what is left of every run, and yield each as it ends.

    What fails is one of the endings; it stops no other run. Close the generator
    (`contextlib.closing`) where it may be left early: that ends the processes it started.

    Parameters
    ----------
    plan
        The runs, each with a folder of its own.
    jobs
        How many processes do whole runs side by side; 1 is this process alone. The runs are the
        same.
    console
        Where progress is shown; nowhere by default.
    hear
        Is told each round of a run, and says whether to go on with it.
    overall
        Who counts, where these runs are only a part of the study.
    """
    if jobs < 1:
        raise FedtailError(f"--jobs {jobs} is refused: give at least 1")
    overall = overall or Overall(console, len(plan), jobs)
    left: list[Planned] = []
    for planned in plan:
        ending = ended_before(planned)
        if ending is None:
            left.append(planned)
            continue
        overall.end(planned, ending)
        yield planned, ending
    if jobs == 1:
        ended = _one_by_one(left, hear, overall)
    else:
        ended = side_by_side(left, min(jobs, len(left)), hear, overall.begin, overall.warn)
    for planned, ending in ended:
        overall.end(planned, ending)
        yield planned, ending


def _one_by_one(
    plan: Sequence[Planned], hear: Hear, overall: Overall
) -> Iterator[tuple[Planned, Ending]]:
    for planned in plan:
        overall.begin(planned)
        shown: list[Callback] = [Progress(overall.console)] if overall.console else []
        yield planned, settle(planned, [*shown, Rounds(partial(hear, planned))])


class Overall:
    """Says which run of how many begins, how long the rest will take, and what came of each.

    Parameters
    ----------
    console
        Where to say it, if anywhere.
    runs
        How many there are.
    jobs
        How many are done at once.
    ended
        How many of them ended before.
    """

    def __init__(self, console: Console | None, runs: int, jobs: int, ended: int = 0) -> None:
        self.console, self._runs, self._jobs, self._ended = console, runs, jobs, ended
        self._began: dict[Path, float] = {}
        self._took: list[float] = []

    def begin(self, planned: Planned) -> None:
        """Tell that a run begins."""
        self._began[planned.path] = time.monotonic()
        number = self._ended + len(self._began)
        what = "" if self._jobs == 1 else f": {planned.experiment.title}"  # else its own line says
        self._say(f"run {number} of {self._runs}{what}{self._left(number)}")

    def _left(self, number: int) -> str:
        """Return how long this run and those after it will take, once one has been seen."""
        if not self._took:
            return ""
        mean = sum(self._took) / len(self._took)
        seconds = mean * (self._runs - number + 1) / self._jobs
        return f", about {human_seconds(seconds)} left"

    def end(self, planned: Planned, ending: Ending) -> None:
        """Tell what came of a run."""
        began = self._began.pop(planned.path, None)
        self._ended += 1
        title = planned.experiment.title
        if began is not None and not ending.given_up and not ending.failure:
            self._took.append(time.monotonic() - began)
        if ending.failure:
            self._say(f"{title} failed: {ending.failure}", "red")
        elif ending.before:
            self._say(f"{title}: done already")
        elif ending.given_up:
            self._say(f"{title}: given up")
        elif self._jobs > 1:
            self._say(f"{title}: done")

    def warn(self, message: str) -> None:
        """Pass on a warning."""
        if self.console is None:
            logger.warning("%s", message)
        self._say(f"warning: {message}")

    def _say(self, line: str, style: str = "") -> None:
        if self.console is not None:
            self.console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)
