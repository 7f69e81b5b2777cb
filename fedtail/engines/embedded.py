"""The embedded engine: all clients on this machine, in one process or a pool of workers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from fedtail.engines.base import ClientStates, Dropped, Replies
from fedtail.engines.crew import Crew, Done, Job, Pool, Solo
from fedtail.engines.workplace import Clock, Workplace
from fedtail.forms import Form, defect, not_finite
from fedtail.metrics import Evaluation
from fedtail.protocol import OPEN_SUM, ClientId, Task, Tensors, Update

AFTER_TRAINING = 1_000_000
TESTING = 2_000_000


class Embedded:
    """Keeps the clients' states, and gives the same bits for any number of workers.

    Parameters
    ----------
    place
        The data, the method and the model.
    workers
        How many worker processes; 0 for none.
    threads
        How many threads each has.
    plugins
        What worker processes import before they start.
    drop
        Leave out a client whose half of the method raises, instead of raising it here.
    seconds
        How long a worker process may take for one task.
    """

    def __init__(
        self,
        place: Workplace,
        workers: int = 0,
        threads: int = 1,
        plugins: Sequence[str] = (),
        drop: bool = False,
        seconds: float = math.inf,
    ) -> None:
        self.states: ClientStates = {}
        self.place = place
        self.crew: Crew = Solo(place, drop=drop)
        if workers:
            self.crew = Pool(place, workers, threads, plugins, drop, seconds)
        self._round = -1
        self._first_turn = 0
        self._turns: Counter[ClientId] = Counter()

    def perform(self, tasks: Sequence[Task], round: int, rounds: int) -> Replies:
        """Have the tasks done, a client's second task after its first."""
        states: ClientStates = {}
        updates: list[Update] = []
        failed: list[Dropped] = []
        forms = self._forms(tasks)
        for wave in self._waves(tasks, round, rounds):
            jobs = [
                Job(task, states.get(task.client, self.states.get(task.client, {})), clock)
                for task, clock in wave
            ]
            for job, done in zip(jobs, self.crew.perform(jobs), strict=True):
                form = forms[job.task.action, id(job.task.payload)]
                self._collect(job, self._checked(job.task, done, form), states, updates, failed)
        refused = {dropped.client for dropped in failed}
        for client, state in states.items():
            # An empty state is kept only where it replaces one: the client has forgotten it.
            if client not in refused and (state or client in self.states):
                self.states[client] = state
        return Replies(
            sorted(updates, key=lambda update: update.client),
            sorted(failed, key=lambda dropped: dropped.client),
        )

    def announced(self, client: ClientId) -> int | None:
        """Return how many samples a client said at the start that it has; none if nothing did."""
        return self.place.federation.size(client)

    def after_training(self, round: int, test: bool = False) -> None:
        """Count turns from a number that no round reaches.

        The exchanges after training then draw the same numbers in a test, at the end of the run,
        and when a run is resumed that had only its end left to do.
        """
        first = TESTING if test else AFTER_TRAINING
        self._round, self._first_turn, self._turns = round, first, Counter()

    def evaluate(self, tensors: Tensors) -> Evaluation:
        """Test a model on the global test set."""
        return self.crew.evaluate(tensors)

    def close(self) -> None:
        """Stop the workers."""
        self.crew.close()

    def _waves(
        self, tasks: Sequence[Task], round: int, rounds: int
    ) -> list[list[tuple[Task, Clock]]]:
        """Sort tasks into waves in which no client stands twice."""
        if round != self._round:
            self._round, self._first_turn, self._turns = round, 0, Counter()
        waves: list[list[tuple[Task, Clock]]] = []
        seen: Counter[ClientId] = Counter()
        for task in tasks:
            number = seen[task.client]
            waves += [[]] if number == len(waves) else []
            turn = self._first_turn + self._turns[task.client]
            waves[number].append((task, Clock(round, rounds, turn)))
            seen[task.client] += 1
            # No method asked for it: what it draws later must not depend on encryption.
            self._turns[task.client] += task.action != OPEN_SUM
        return waves

    def _forms(self, tasks: Sequence[Task]) -> dict[tuple[str, int], Form | None]:
        """Return what is declared for each task, before any is done; nothing for sealed answers."""
        forms: dict[tuple[str, int], Form | None] = {}
        for task in tasks:
            key = task.action, id(task.payload)
            if key not in forms:
                forms[key] = None if self.place.shield else self.place.form(task)
        return forms

    def _checked(self, task: Task, done: Done, form: Form | None) -> Done:
        """Return what came of a task, with a reason in place of an answer that cannot be used."""
        if done.payload is None:
            return done
        if form is None:  # its client has held it against the form before it was sealed
            reason = not_finite(done.payload)
        else:
            reason = defect(done.payload, form, self.announced(task.client))
        return replace(done, payload=None, reason=reason) if reason else done

    def _collect(
        self,
        job: Job,
        done: Done,
        states: ClientStates,
        updates: list[Update],
        failed: list[Dropped],
    ) -> None:
        if done.payload is None:
            failed.append(Dropped(job.task.client, done.reason, done.error is not None))
        else:
            states[job.task.client] = done.state
            updates.append(Update(job.task.client, done.payload))
