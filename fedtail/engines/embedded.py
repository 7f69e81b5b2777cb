"""The embedded engine: all clients on this machine, in one process or a pool of workers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from fedtail.engines.base import ClientStates, Dropped, Replies
from fedtail.engines.executor import Done, Executor, Job, Pool, Serial
from fedtail.engines.runtime import Clock, Runtime
from fedtail.forms import Form, defect, not_finite
from fedtail.metrics import Evaluation
from fedtail.protocol import INPUT_SUMS, OPEN_SUM, ClientId, Task, Tensors, Update
from fedtail.reduce import Plan
from fedtail.standardise import with_constants

AFTER_TRAINING = 1_000_000
TESTING = 2_000_000


class Embedded:
    """Keeps the clients' states, and gives the same bits for any number of workers.

    Parameters
    ----------
    runtime
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
        runtime: Runtime,
        workers: int = 0,
        threads: int = 1,
        plugins: Sequence[str] = (),
        drop: bool = False,
        seconds: float = math.inf,
    ) -> None:
        self.states: ClientStates = {}
        self.runtime = runtime
        self.executor: Executor = Serial(runtime, drop=drop)
        if workers:
            self.executor = Pool(runtime, workers, threads, plugins, drop, seconds)
        self._round = -1
        self._first_turn = 0
        self._turns: Counter[ClientId] = Counter()

    def perform(
        self, tasks: Sequence[Task], round: int, rounds: int, single: bool = False
    ) -> Replies:
        """Have the tasks done, a client's second task after its first."""
        tasks = with_constants(tasks, self.runtime.federation)
        plan, states = self._plan(tasks), dict[ClientId, dict[str, Tensor]]()
        failed: list[Dropped] = []
        traffic: dict[ClientId, list[int]] = {}

        def good() -> Iterator[Update]:
            for wave in self._waves(tasks, round, rounds):
                jobs = [
                    Job(task, states.get(task.client, self.states.get(task.client, {})), clock)
                    for task, clock in wave
                ]
                for job, done in zip(jobs, self.executor.perform(jobs), strict=True):
                    task = job.task
                    sent = traffic.setdefault(task.client, [0, 0])
                    sent[0] += task.payload.nbytes
                    done = self._checked(task, done, plan)
                    if done.payload is None:
                        raised = done.error is not None
                        failed.append(Dropped(task.client, done.reason, raised))
                        continue
                    sent[1] += done.payload.nbytes
                    states[task.client] = done.state
                    yield Update(task.client, done.payload)

        found = plan.reduced(good(), single)
        refused = {dropped.client for dropped in failed}
        for client, state in states.items():
            # An empty state is kept only where it replaces one: the client has forgotten it.
            if client not in refused and (state or client in self.states):
                self.states[client] = state
        return Replies(found, sorted(failed, key=lambda dropped: dropped.client), traffic)

    def form(self, task: Task) -> Form:
        """Return what the method declares that clients answer to a task."""
        return self.runtime.form(task)

    def announced(self, client: ClientId) -> int | None:
        """Return how many samples a client said at the start that it has; none if nothing did."""
        return self.runtime.federation.size(client)

    def after_training(self, round: int, test: bool = False) -> None:
        """Count turns from a number that no round reaches.

        The exchanges after training then draw the same numbers in a test, at the end of the run,
        and when a run is resumed that had only its end left to do.
        """
        first = TESTING if test else AFTER_TRAINING
        self._round, self._first_turn, self._turns = round, first, Counter()

    def evaluate(self, tensors: Tensors) -> Evaluation:
        """Test a model on the global test set."""
        return self.executor.evaluate(tensors)

    def close(self) -> None:
        """Stop the workers."""
        self.executor.close()

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
            # No method asked for these: what it draws later must not depend on them.
            self._turns[task.client] += task.action not in (OPEN_SUM, INPUT_SUMS)
        return waves

    def _plan(self, tasks: Sequence[Task]) -> Plan:
        """Return how the answers are added up, before any task is done; sealed ones are not."""
        if self.runtime.shield is not None:
            return Plan({}, Form().singly("it is sealed"), {})
        return Plan.of(tasks, self)

    def _checked(self, task: Task, done: Done, plan: Plan) -> Done:
        """Return what came of a task, with a reason in place of an answer that cannot be used."""
        if done.payload is None:
            return done
        if self.runtime.shield is not None:  # held against the form before it was sealed
            reason = not_finite(done.payload)
        else:
            reason = defect(done.payload, plan.of_task(task), self.announced(task.client))
        return replace(done, payload=None, reason=reason) if reason else done
