"""The embedded engine: all clients on this machine, in one process or a pool of workers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from fedtail.engines.auto import Auto
from fedtail.engines.base import ClientStates, Dropped, Replies, ServerSide
from fedtail.engines.block_size import tried
from fedtail.engines.executor import Arrival, Done, Executor, Intake, Job, Serial
from fedtail.engines.pool import Pool
from fedtail.engines.runtime import Clock, Phase, Runtime
from fedtail.engines.together import in_block_order, in_blocks
from fedtail.engines.workers import Workers
from fedtail.forms import Form
from fedtail.metrics import Evaluation
from fedtail.protocol import ClientId, Payload, Task, Tensors, Update
from fedtail.reduce import ExchangePlan, Reduced
from fedtail.standardise import with_constants
from fedtail.totals import Sums


class Embedded:
    """Keeps the clients' states, and gives the same bits for any number of workers.

    Parameters
    ----------
    runtime
        The data, the method and the model.
    workers
        How many worker processes; 0 for none, "auto" for as many as are worth it.
    threads
        How many threads each has.
    plugins
        What worker processes import before they start.
    drop
        Leave out a client whose half of the method raises, instead of raising it here.
    seconds
        How long a worker process may take for one task.
    server_side
        What is made of answers before the method sees them, if anything is.
    """

    def __init__(
        self,
        runtime: Runtime,
        workers: Workers = 0,
        threads: int = 1,
        plugins: Sequence[str] = (),
        drop: bool = False,
        seconds: float = math.inf,
        server_side: ServerSide | None = None,
    ) -> None:
        self.states = ClientStates()
        self.runtime = runtime
        self.server_side = server_side
        self.executor: Executor = Serial(runtime, drop=drop)
        if workers == "auto":

            def pool(count: int) -> Pool:
                return Pool(runtime, count, threads, plugins, drop, seconds, main=False)

            self.executor = Auto(self.executor, pool, runtime, threads)
        elif workers:
            self.executor = Pool(runtime, workers, threads, plugins, drop, seconds)
        self._tried, self._put_off = False, 0
        self._round = -1
        self._phase: Phase = "training"
        self._turns: Counter[ClientId] = Counter()

    def perform(
        self, tasks: Sequence[Task], round: int, rounds: int, single: bool = False
    ) -> Replies:
        """Have the tasks done, a client's second task after its first."""
        if round != self._round:
            self.begin(round, "training")
        tasks = with_constants(tasks, self.runtime.federation)
        side = self.server_side if tasks and self._phase != "test" else None
        clock = Clock(round, rounds, phase=self._phase)
        sent = tasks if side is None else side.begin(tasks, self, clock)
        plan = ExchangePlan.of(sent, self, single or (side is not None and side.single))
        apart = plan.single or (side is not None and side.apart)
        answers = Answers(self, plan, Sums(plan.form, plan.frames), apart)
        for wave in self._waves(sent, round, rounds):
            answers.collect(wave)
        replies = answers.replies()
        if side is not None:
            replies = side.end(replies, tasks, self, clock)
        answers.keep(replies.found.clients)
        return replies

    def ask(self, tasks: Sequence[Task], clock: Clock) -> list[Done]:
        """Have tasks done that no method asked for, and that change nothing at the clients."""
        jobs = [Job(task, self.states.get(task.client, {}), clock) for task in tasks]
        return list(self.executor.perform(jobs))

    def form(self, task: Task) -> Form:
        """Return what leaves a client that is given a task."""
        return self.runtime.form(task, self._phase)

    def declared(self, task: Task) -> Form:
        """Return what the method declares that clients answer to a task."""
        return self.runtime.declared(task)

    def announced(self, client: ClientId) -> int | None:
        """Return how many samples a client said at the start that it has; none if nothing did."""
        return self.runtime.federation.size(client)

    def begin(self, round: int, phase: Phase) -> None:
        """Begin a phase of a round: turns are counted anew."""
        self._round, self._phase, self._turns = round, phase, Counter()

    def arranged(self, jobs: list[Job]) -> list[Job]:
        """Return jobs as they are cut into blocks of clients that train together."""
        self.runtime.together = self.runtime.together or self._put_off
        self._put_off = 0
        found = in_block_order(self.runtime, jobs)
        if not self._tried and any(in_blocks(self.runtime, job) for job in jobs):
            self._tried = tried(self.runtime, found)
            if not self._tried:  # one by one, until they can be
                self._put_off, self.runtime.together = self.runtime.together, 0
        return found

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
        waves: list[list[tuple[Task, Clock]]] = []
        seen: Counter[ClientId] = Counter()
        for task in tasks:
            number = seen[task.client]
            waves += [[]] if number == len(waves) else []
            clock = Clock(round, rounds, self._turns[task.client], self._phase)
            waves[number].append((task, clock))
            seen[task.client] += 1
            self._turns[task.client] += 1
        return waves


@dataclass
class Answers:
    """What comes back in one exchange."""

    engine: Embedded
    plan: ExchangePlan
    total: Sums
    apart: bool  # whether every answer comes here as it is
    each: list[Update] = field(default_factory=list)
    clients: list[ClientId] = field(default_factory=list)
    states: dict[ClientId, dict[str, Tensor]] = field(default_factory=dict)
    failed: list[Dropped] = field(default_factory=list)
    traffic: dict[ClientId, list[int]] = field(default_factory=dict)
    sent: dict[ClientId, Payload] = field(default_factory=dict)  # and not yet settled
    asked: dict[ClientId, Task] = field(default_factory=dict)  # in this wave
    answered: list[Task] = field(default_factory=list)

    def collect(self, wave: Sequence[tuple[Task, Clock]]) -> None:
        """Have tasks of different clients done, and add up their answers as they come."""
        known = self.engine.states
        jobs = [
            Job(task, self.states.get(task.client, known.get(task.client, {})), clock)
            for task, clock in wave
        ]
        jobs = self.engine.arranged(jobs)
        self.asked = {job.task.client: job.task for job in jobs}
        total = None if self.apart else self.total
        results, intake = iter(self.engine.executor.perform(jobs, total)), Intake(self.total)
        for job in jobs:  # no zip, which would keep an answer until the next is there
            self._take(intake.put(self._received(job, next(results))))
        self._take(intake.settle())

    def _received(self, job: Job, done: Done) -> Arrival:
        client, payload = job.task.client, done.payload
        self.traffic.setdefault(client, [0, 0])[0] += job.task.payload.nbytes
        if self.plan.single and payload is not None:
            self.sent[client] = payload
        return Arrival(job, done, self.plan.of_task(job.task), self.engine.announced(client))

    def _take(self, settled: Sequence[tuple[ClientId, Done]]) -> None:
        for client, done in settled:
            payload = self.sent.pop(client, None)
            if done.added is None:
                self.failed.append(Dropped(client, done.reason, done.error is not None))
                continue
            self.traffic[client][1] += done.added
            self.states[client] = done.state
            self.clients.append(client)
            self.answered.append(self.asked[client])
            if payload is not None:
                self.each.append(Update(client, payload))

    def replies(self) -> Replies:
        """Return what came of it."""
        self.each.sort(key=lambda update: update.client)
        found = Reduced(tuple(sorted(self.clients)), self.total, tuple(self.each))
        failed = sorted(self.failed, key=lambda d: d.client)
        return Replies(found, failed, self.traffic, self.answered)

    def keep(self, used: Sequence[ClientId]) -> None:
        """Keep what the clients remember whose every answer was used."""
        failed = {dropped.client for dropped in self.failed}
        for client in set(used) - failed:
            # An empty state is kept only where it replaces one: the client has forgotten it.
            if self.states[client] or client in self.engine.states:
                self.engine.states[client] = self.states[client]
