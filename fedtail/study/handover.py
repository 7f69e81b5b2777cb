"""Whether the runs of a study go side by side, found out while the first of them goes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from fedtail.callbacks import Callback, RunInfo, Snapshot
from fedtail.cores import Usage, free_between, free_memory, own_memory
from fedtail.device import choose_device
from fedtail.engines.auto import LOOK_AGAIN, WORTH
from fedtail.processes import Hand, hire, keep, may_start, sent_without_script, starting_costs
from fedtail.study.plan import Planned


class HandedOver(Exception):
    """A run was left where it was saved, to be gone on with in another process."""


class Handover(Callback):
    """Starts processes if they are worth it, and leaves the run to them when they are ready.

    The first round says how long all that is left will take. While the processes start, the run
    goes on here.

    Parameters
    ----------
    plan
        All runs that are left, the one that is watched first.
    """

    def __init__(self, plan: Sequence[Planned]) -> None:
        self._plan = list(plan)
        self._usage = Usage.now()
        self._hands: list[Hand] = []
        self._never = not may_start() or not all(_on_processors(p) for p in plan)

    @property
    def jobs(self) -> int:
        """How many processes there are for it."""
        return len(self._hands)

    def next_run(self) -> None:
        """Tell that the first run is over."""
        del self._plan[0]

    def on_start(self, info: RunInfo) -> None:
        """Begin to count."""
        self._began = time.monotonic()
        self._done = info.done

    def on_saved(self, snapshot: Snapshot) -> None:
        """Start the processes, or leave the run to them."""
        if self._never or snapshot.last or len(self._plan) < 2:
            return
        watched = self._plan[0].experiment
        if self._hands:
            # A budget of privacy is spent, and a tracker told, in one place.
            whole = watched.privacy.on or bool(watched.track)
            if not whole and snapshot.round % watched.checkpoint_every == 0 and self.ready():
                raise HandedOver
        elif snapshot.round == self._done + 1 or self._usage.at + LOOK_AGAIN < time.monotonic():
            mean = (time.monotonic() - self._began) / (snapshot.round - self._done)
            rounds = sum(planned.experiment.rounds for planned in self._plan) - snapshot.round
            self._consider(mean * rounds)

    def ready(self) -> bool:
        """Whether all processes have started; those that died while they did are given up."""
        try:
            return all(hand.ready(wait=False) for hand in self._hands)
        except (EOFError, OSError):
            self._never = True
            self.let_go()
            return False

    def let_go(self) -> None:
        """Keep the processes for whoever needs some next."""
        keep(self._hands)
        self._hands = []

    def _consider(self, seconds: float) -> None:
        """Start processes for what takes so many seconds here, if it is worth it."""
        before, self._usage = self._usage, Usage.now()
        threads = max(planned.experiment.threads for planned in self._plan)
        jobs = min(free_between(before, self._usage) // threads, len(self._plan))
        jobs = min(jobs, 1 + int(free_memory() // own_memory()))
        if jobs < 2 or seconds * (1 - 1 / jobs) < WORTH * starting_costs():
            return
        if sent_without_script(self._plan) is None:
            self._never = True
            return
        self._hands = hire(jobs, main=False)


def _on_processors(planned: Planned) -> bool:
    return choose_device(planned.experiment.device).type == "cpu"
