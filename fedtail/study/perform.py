"""All runs of a study, one after the other or side by side, and how far it has come."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from fedtail.allocator import give_back
from fedtail.callbacks import Callback, Progress, Record
from fedtail.callbacks.progress import human_seconds
from fedtail.errors import FedtailError
from fedtail.study.handover import Handover
from fedtail.study.jobs import Hear, side_by_side
from fedtail.study.plan import Planned
from fedtail.study.settle import DataHere, Ending, Rounds, ended_before, settle

logger = logging.getLogger("fedtail")


JobNumber = int | Literal["auto"]
"""How many runs go side by side; "auto" is as many as there are free cores, if it is worth it."""


def read_jobs(text: str) -> JobNumber:
    """Return a number of jobs as it was typed."""
    digits = text.removeprefix("-").isdigit()
    return must_be_jobs("auto" if text == "auto" else int(text) if digits else text)


def must_be_jobs(jobs: Any) -> JobNumber:
    """Refuse what is no number of jobs."""
    if jobs == "auto" or (isinstance(jobs, int) and jobs >= 1):
        found: JobNumber = jobs
        return found
    raise FedtailError(f"--jobs {jobs} is refused: give at least 1, or auto")


def perform(
    plan: Sequence[Planned],
    jobs: JobNumber = "auto",
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
    must_be_jobs(jobs)
    overall = overall or Overall(console, len(plan))
    left: list[Planned] = []
    here = DataHere()
    for planned in plan:
        ending = ended_before(planned, here)
        if ending is None:
            left.append(planned)
            continue
        overall.end(planned, ending)
        yield planned, ending
    del here  # the runs have data of their own
    # Who asks for workers wants the runs to have the cores one after the other.
    worked = any(planned.experiment.workers not in (0, "auto") for planned in left)
    if jobs == 1 or (jobs == "auto" and (worked or len(left) < 2)):
        ended = _one_by_one(left, hear, overall)
    elif jobs == "auto":
        ended = _as_it_is_worth(left, hear, overall)
    else:
        ended = _beside(left, min(jobs, len(left)), hear, overall)
    with closing(ended):
        for planned, ending in ended:
            overall.end(planned, ending)
            yield planned, ending


def _one_by_one(
    plan: Sequence[Planned], hear: Hear, overall: Overall
) -> Generator[tuple[Planned, Ending]]:
    for planned in plan:
        yield planned, _here(planned, hear, overall)


def _here(planned: Planned, hear: Hear, overall: Overall, *more: Callback) -> Ending:
    """Do a run in this process."""
    overall.jobs = 1
    overall.begin(planned)
    watching = [Rounds(partial(hear, planned)), *more]
    try:
        if overall.console is None:
            with _said_once(overall.warned):
                return settle(planned, watching)
        with closing(Progress(overall.console, warned=overall.warned)) as progress:
            progress.listen()  # what is said of the data comes before the start
            return settle(planned, [progress, *watching])
    finally:
        give_back()


@contextmanager
def _said_once(warned: set[str]) -> Iterator[None]:
    """Keep back what the logger ``fedtail`` is told and an earlier run has warned of."""

    def is_new(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        known = message in warned
        if record.levelno >= logging.WARNING:
            warned.add(message)
        return not known

    logger.addFilter(is_new)
    try:
        yield
    finally:
        logger.removeFilter(is_new)


def _as_it_is_worth(
    plan: Sequence[Planned], hear: Hear, overall: Overall
) -> Generator[tuple[Planned, Ending]]:
    """Begin here, and go on side by side when that is found to be worth it."""
    waiting = deque(plan)
    handover = Handover(plan)
    try:
        while waiting:
            planned = waiting[0]
            if len(waiting) > 1:
                planned = replace(planned, experiment=planned.experiment.but(workers=0))
            ending = _here(planned, hear, overall, handover)
            if ending.handed_over:
                break
            yield waiting.popleft(), ending
            handover.next_run()
            if handover.jobs and len(waiting) > 1 and handover.ready():
                break
        jobs = min(handover.jobs, len(waiting))
    finally:
        handover.let_go()
    if waiting:
        overall.leave(waiting[0], jobs)
        yield from _beside(waiting, jobs, hear, overall, main=False)


def _beside(
    plan: Sequence[Planned], jobs: int, hear: Hear, overall: Overall, main: bool = True
) -> Generator[tuple[Planned, Ending]]:
    """Do runs side by side."""
    overall.jobs = jobs

    def heard(planned: Planned, record: Record) -> bool:
        overall.round(planned, record)
        return hear(planned, record)

    yield from side_by_side(plan, jobs, heard, overall.begin, overall.warn, main)


class Overall:
    """Says which run of how many begins, how long the rest will take, and what came of each.

    Parameters
    ----------
    console
        Where to say it, if anywhere.
    runs
        How many there are.
    ended
        How many of them ended before.

    Attributes
    ----------
    jobs
        How many are done at once.
    warned
        Warnings of all runs so far: what they share, such as a remark on the data, is said once.
    """

    every = 5.0

    def __init__(self, console: Console | None, runs: int, ended: int = 0) -> None:
        self.console, self._runs, self._ended = console, runs, ended
        self.jobs = 1
        self.warned: set[str] = set()
        self._began: dict[Path, float] = {}
        self._told: dict[Path, float] = {}
        self._took: list[float] = []

    def begin(self, planned: Planned) -> None:
        """Tell that a run begins."""
        self._began[planned.path] = time.monotonic()
        number = self._ended + len(self._began)
        what = "" if self.jobs == 1 else f": {planned.experiment.title}"  # else its own line says
        self._say(f"run {number} of {self._runs}{what}{self._left(number)}")

    def leave(self, planned: Planned, jobs: int) -> None:
        """Tell that the runs that are left go side by side from here."""
        self._began.pop(planned.path, None)
        self._say(f"{jobs} runs at a time from here, each on a core of its own")

    def round(self, planned: Planned, record: Record) -> None:
        """Tell how far one of several runs is, from time to time."""
        now, rounds = time.monotonic(), planned.experiment.rounds
        before = self._told.get(planned.path, self._began.get(planned.path, now))
        if now - before < self.every or record["round"] >= rounds:
            return
        self._told[planned.path] = now
        accuracy = record.get("accuracy")
        scores = "" if accuracy is None else f"  accuracy {accuracy:.4f}"
        self._say(f"{planned.experiment.title}: round {record['round']}/{rounds}{scores}")

    def _left(self, number: int) -> str:
        """Return how long this run and those after it will take, once one has been seen."""
        if not self._took:
            return ""
        mean = sum(self._took) / len(self._took)
        seconds = mean * (self._runs - number + 1) / self.jobs
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
        elif self.jobs > 1:
            self._say(f"{title}: done")

    def warn(self, planned: Planned, message: str) -> None:
        """Pass on a warning of a run, unless another run has given the same one."""
        if message in self.warned:
            return
        self.warned.add(message)
        said = f"{planned.experiment.title}: {message}"
        if self.console is None:
            logger.warning("%s", said)
        self._say(f"warning: {said}")

    def _say(self, line: str, style: str = "") -> None:
        if self.console is not None:
            self.console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)
