"""One process does the tasks, until it is worth to have others do them.

The clock decides, and may: what a task gives does not depend on who does it, so neither do the bits
of a run.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedtail.cores import LOOK, Usage, free_between, free_memory, own_memory
from fedtail.engines.executor import Done, Executor, Job
from fedtail.engines.pool import Pool
from fedtail.engines.runtime import Runtime
from fedtail.engines.together import blocks
from fedtail.errors import ClientFailed, FedtailError, RunStopped
from fedtail.metrics import Evaluation
from fedtail.processes import (
    Hand,
    hire,
    keep,
    may_start,
    sent_without_script,
    starting_costs,
)
from fedtail.protocol import Tensors
from fedtail.totals import Sums

logger = logging.getLogger("fedtail")

WORTH = 2.0
"""How many times the seconds that it takes to start processes have to be saved."""
LOOK_AGAIN = 10.0
"""Seconds after which it is looked again whether cores are free."""
TRIED, FASTER = 1.0, 0.9
"""Seconds that a pool is tried for, and what it may take at most of the time taken alone."""
SHARED = Path("/dev/shm")
"""Where systems that have it hold what processes share; a container may have little of it."""


@dataclass
class Times:
    """How long jobs took."""

    seconds: float = 0.0
    jobs: int = 0

    @property
    def each(self) -> float:
        """Seconds for one."""
        return self.seconds / max(1, self.jobs)


@dataclass
class Auto:
    """One process, and then a pool where cores are free and enough is left to do.

    Half of the first round says how long the run will take here. While the processes start, it
    goes on here; they take over at the next exchange. If they turn out to be slower, for there is
    little to compute and much to send, this process does the rest.

    Attributes
    ----------
    alone
        Does the tasks in this process.
    pool
        Makes a pool of so many processes that have not imported the main script.
    runtime
        What is sent to them.
    threads
        How many threads each has.
    """

    alone: Executor
    pool: Callable[[int], Pool]
    runtime: Runtime
    threads: int = 1
    _together: Pool | None = None
    _hands: list[Hand] = field(default_factory=list)
    _usage: Usage = field(default_factory=Usage.now)
    _looked: bool = False
    _never: bool = False
    _here: Times = field(default_factory=Times)
    _there: Times | None = None
    _test: float = 0.0

    def __post_init__(self) -> None:
        self._never = not may_start() or self.runtime.device.type != "cpu"

    @property
    def workers(self) -> int:
        """How many processes do the tasks; 0 for this one alone."""
        return 0 if self._together is None else self._together.workers

    def perform(self, jobs: Sequence[Job], total: Sums | None = None) -> Iterable[Done]:
        """Do the jobs, here or there."""
        self._take_over()
        if self._together is None:
            return self._do_here(jobs, total)
        began = time.perf_counter()
        try:
            done = self._together.perform(jobs, total)
        except ClientFailed as error:
            # The same once more, here: the error is then the method's own, with its traceback.
            failed = [job for job in jobs if str(error).endswith(str(job))]
            list(self.alone.perform(failed[:1]))
            raise
        self._compare(time.perf_counter() - began, len(jobs))
        return done

    def evaluate(self, tensors: Tensors) -> Evaluation:
        """Test a model on the whole test set."""
        if self._together is not None:
            try:
                return self._together.evaluate(tensors)
            except ClientFailed:
                self.alone.evaluate(tensors)
                raise
        began = time.perf_counter()
        found = self.alone.evaluate(tensors)
        self._test = time.perf_counter() - began
        return found

    def close(self) -> None:
        """Let the processes go."""
        keep(self._hands)
        self._hands = []
        if self._together is not None:
            self._together.close()

    def _do_here(self, jobs: Sequence[Job], total: Sums | None) -> Iterator[Done]:
        results = iter(self.alone.perform(jobs, total))
        for number in range(1, len(jobs) + 1):
            began = time.perf_counter()
            done = next(results)
            self._here.seconds += time.perf_counter() - began
            self._here.jobs += 1
            if 2 * number >= len(jobs):
                self._look(jobs, number)
            yield done

    def _look(self, jobs: Sequence[Job], done: int) -> None:
        """Start processes if what is left of a run, after so many jobs of a round, is worth it."""
        clock, since = jobs[0].clock, time.monotonic() - self._usage.at
        if self._never or self._hands or clock.phase != "training" or not clock.round:
            return
        if since < (LOOK_AGAIN if self._looked else LOOK):
            return
        before, self._usage, self._looked = self._usage, Usage.now(), True
        rounds = clock.rounds - clock.round + 1
        shares = len(list(blocks(self.runtime, jobs)))  # clients that train together stay together
        seconds = self._here.each * (rounds * len(jobs) - done) + rounds * self._test
        workers = min(free_between(before, self._usage) // self.threads, shares)
        if workers < 2 or seconds * (1 - 1 / workers) < WORTH * starting_costs():
            return
        if self._fits(workers):
            self._hands = hire(workers, main=False)
        else:
            self._never = True

    def _fits(self, workers: int) -> bool:
        """Whether everything can be sent, and there is memory for it."""
        size = sent_without_script(self.runtime)
        if size is None:
            logger.debug("classes of the main script are not sent to worker processes")
            return False
        room = float("inf")
        if SHARED.is_dir():
            system = os.statvfs(SHARED)
            room = system.f_bavail * system.f_frsize
        each = max(0.0, own_memory() - size)
        return size < room and size + workers * each < free_memory()

    def _take_over(self) -> None:
        """Have the processes do the tasks from here on, if they are ready."""
        if not self._hands:
            return
        hands = self._hands
        try:
            if not all(hand.ready(wait=False) for hand in hands):
                return
            self._hands = []
            keep(hands)
            self._together = self.pool(len(hands))
        except (FedtailError, RunStopped, EOFError, OSError, RuntimeError) as error:
            # Nobody asked for processes: what they cannot do is done here.
            logger.debug("no worker processes: %s", error)
            self._never, self._hands = True, []
            keep(hands)

    def _compare(self, seconds: float, jobs: int) -> None:
        """Go on here if a second with the processes has shown that they are no faster."""
        if self._there is None:
            self._there = Times()  # the first wave warms them up
            return
        if self._never:
            return
        self._there.seconds += seconds
        self._there.jobs += jobs
        if self._there.seconds < TRIED:
            return
        self._never = True
        if self._there.each > FASTER * self._here.each and self._together is not None:
            self._together.close()
            self._together = None
