"""An executor whose workers are Flower nodes: jobs go out as messages, and come back or do not.

The engine above it is the embedded one: turns, the refusal of bad updates and the clients' states
are the same code. What it keeps as a client's state is here only the number of a version; the state
itself never leaves the client (see `store`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from flwr.app import RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedtail.engines.executor import Done, Job, Serial
from fedtail.engines.flower.bridge import to_records, wire_bytes
from fedtail.engines.flower.roster import Roster
from fedtail.engines.flower.rpc import Answer, NodeId, ask
from fedtail.engines.runtime import Runtime
from fedtail.errors import ClientFailed, FedtailError
from fedtail.files import append_line
from fedtail.forms import LARGEST
from fedtail.metrics import Evaluation
from fedtail.protocol import ClientId, Payload, Task, Tensors
from fedtail.reduce import received
from fedtail.totals import Sums

VERSION = "flower/version"
Jobs = list[tuple[int, Job]]  # each with its place among all jobs of the wave


@dataclass(frozen=True)
class RunTerms:
    """What both sides have to know of a run.

    Attributes
    ----------
    run
        What tells this run's client states from those of others; kept when it is resumed.
    deadline
        Seconds that an exchange may take; who has not answered by then is left out.
    threads
        Threads of a client, as in the experiment.
    checkpoint_every
        After how many rounds the server can go back; clients keep what that needs.
    method
        The method as plain data, for clients that have no description of their own.
    kind
        The type of the messages.
    """

    run: str
    deadline: float = 600.0
    threads: int = 1
    checkpoint_every: int = 1
    method: Mapping[str, Any] | None = None
    kind: str = "train"
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class FlowerExecutor:
    """Does jobs on the nodes of a Flower federation, and tests models in this process.

    Attributes
    ----------
    journal
        A file that gets one JSON object an exchange: who was asked, who answered, who failed and
        why, bytes counted and bytes on the wire.
    hides
        Whether the journal says how many, instead of who.
    """

    grid: Grid
    roster: Roster
    terms: RunTerms
    runtime: Runtime
    journal: Path | None = None
    newest: int = 0
    ordered: dict[ClientId, int] = field(default_factory=dict)
    bases: dict[ClientId, tuple[int, int, int]] = field(default_factory=dict)
    lost: dict[ClientId, int] = field(default_factory=dict)
    hides: bool = field(default=False, kw_only=True)

    def perform(self, jobs: Sequence[Job], total: Sums | None = None) -> list[Done]:
        """Do the jobs; the results are in the order of the jobs."""
        began = time.perf_counter()
        online = self.roster.refresh()
        sent: dict[NodeId, Jobs] = {}
        done: dict[int, Done] = {}
        for number, job in enumerate(jobs):
            node = online.get(self.roster.partition(job.task.client))
            if node is None:
                done[number] = Done(None, job.state, "its node is offline")
            else:
                sent.setdefault(node, []).append((number, job))
        contents = {node: self.message(held, total) for node, held in sent.items()}
        round = jobs[0].clock.round if jobs else 0
        answers = ask(self.grid, self.terms.kind, contents, self.terms.deadline, str(round))
        for node, held in sent.items():
            numbers, found = (n for n, _ in held), self.results(held, answers[node], total)
            done.update(zip(numbers, found, strict=True))
        ordered = [done[number] for number in range(len(jobs))]
        self.note(jobs, ordered, contents, answers, time.perf_counter() - began)
        return ordered

    def evaluate(self, tensors: Tensors) -> Evaluation:
        """Test a model on the whole test set."""
        return Serial(self.runtime).evaluate(tensors)

    def close(self) -> None:
        """Nothing was started."""

    def message(self, jobs: Jobs, total: Sums | None) -> RecordDict:
        """Return the message for one node; payloads that several jobs share are in it once.

        A node that has several jobs adds up their answers itself.
        """
        slots: dict[int, int] = {}
        payloads: list[Payload] = []
        orders = []
        for _, job in jobs:
            payload = job.task.payload
            if id(payload) not in slots:
                slots[id(payload)] = len(payloads)
                payloads.append(payload)
            orders.append(self.order(job, slots[id(payload)]))
        terms = self.terms
        notes = {"kind": "work", "run": terms.run, "threads": terms.threads, "jobs": orders}
        told = {} if terms.method is None else {"method": dict(terms.method)}
        frames = {} if total is None or len(jobs) < 2 else {"frames": total.frames.plain()}
        return to_records(payloads, {**notes, **told, **frames, **terms.more})

    def order(self, job: Job, slot: int) -> dict[str, Any]:
        """Return what a client is told of one job."""
        client, since = job.task.client, version(job.state)
        if self.lost.get(client) == since:
            since = 0
        self.newest = max(self.newest, since) + 1
        clock = job.clock
        # The client goes back to the version of the last checkpoint if the run is resumed from it,
        # and to that of the one before if the last is damaged.
        saved = (clock.round - 1) // self.terms.checkpoint_every
        base = self.bases.get(client, (-1, since, since))
        if base[0] != saved:
            before = base[1] if base[0] == saved - 1 else since
            base = self.bases[client] = (saved, since, before)
        self.ordered[client] = self.newest
        return {
            "client": client,
            "action": job.task.action,
            "payload": slot,
            "clock": [clock.round, clock.rounds, clock.turn, clock.phase],
            "since": since,
            "version": self.newest,
            "keep": sorted({*base[1:], since}),
        }

    def results(self, held: Jobs, answer: Answer, total: Sums | None) -> Iterator[Done]:
        """Give what came of one node's jobs, in their order; its sum is added to the total."""
        told: Any = answer.notes.get("outcomes")
        # Whatever a node sends, it can only spoil its own clients' answers.
        outcomes = [o for o in told if isinstance(o, dict)] if isinstance(told, list) else []
        kept = [(job, o) for (_, job), o in zip(held, outcomes, strict=False) if "version" in o]
        added = total is not None and len(held) > 1
        reason = answer.reason
        number = 1 if added else len(kept)
        if not reason and (len(outcomes) != len(held) or len(answer.payloads) != number):
            reason = "its node sent another number of answers than it was given tasks"
        if not reason and total is not None and added and kept:
            wrong = (self.oddity(job, outcome) for job, outcome in kept)
            reason = next(filter(None, wrong), "")
            reason = reason or self.take(answer.payloads[0], [job.task for job, _ in kept], total)
        if reason:
            error = ClientFailed(reason) if answer.raised else None
            yield from (Done(None, job.state, reason, error) for _, job in held)
            return
        payloads = iter(() if added else answer.payloads)
        for (_, job), outcome in zip(held, outcomes, strict=True):
            yield self.result(job, next(payloads, None) if "version" in outcome else None, outcome)

    def take(self, payload: Payload, tasks: Sequence[Task], total: Sums) -> str:
        """Add the sum of a node's clients to the total, or return what is wrong with it."""
        announced = sum(self.announced(task.client) for task in tasks)
        try:
            total.merge(received(payload, total.form, total.frames, len(tasks), announced))
        except FedtailError as error:
            return f"its node {error}"
        return ""

    def announced(self, client: ClientId) -> float:
        """Return how many samples a client can have."""
        own = self.roster.samples.get(client)
        size = self.runtime.federation.size(client) if own is None else own
        return LARGEST if size is None else size

    def result(self, job: Job, payload: Payload | None, outcome: Mapping[str, Any]) -> Done:
        """Return what came of one job; the client must have kept the version it was told to."""
        client = job.task.client
        if "version" not in outcome:
            reason = str(outcome.get("reason", "it gave no reason"))
            if outcome.get("lost") or outcome.get("refused"):
                if outcome.get("lost"):
                    self.lost[client] = version(job.state)
                return Done(None, job.state, reason)
            return Done(None, job.state, reason, ClientFailed(reason))
        reason = self.oddity(job, outcome)
        if reason:
            return Done(None, job.state, reason)
        added = None if payload is not None else outcome.get("bytes", 0)
        return Done(payload, reference(outcome["version"]), added=added)

    def oddity(self, job: Job, outcome: Mapping[str, Any]) -> str:
        """Return what is wrong with the version or the size that a node tells of an answer."""
        kept, told = outcome["version"], self.ordered[job.task.client]
        sent = outcome.get("bytes", 0)
        if kept not in (0, told):
            return f"kept version {kept}, not {told}"
        return "" if isinstance(sent, int) and sent >= 0 else f"says that it sent {sent!r} bytes"

    def note(
        self,
        jobs: Sequence[Job],
        done: Sequence[Done],
        contents: Mapping[NodeId, RecordDict],
        answers: Mapping[NodeId, Answer],
        seconds: float,
    ) -> None:
        """Write the exchange into the journal."""
        if self.journal is None or not jobs:
            return
        pairs = list(zip(jobs, done, strict=True))
        line = {
            "time": time.time(),
            "round": jobs[0].clock.round,
            "turn": jobs[0].clock.turn,
            "actions": sorted({job.task.action for job in jobs}),
            **self.who(pairs),
            "nodes": len(contents),
            "bytes_down": sum(job.task.payload.nbytes for job in jobs),
            "bytes_up": sum(d.added or (d.payload.nbytes if d.payload else 0) for d in done),
            "wire_down": sum(wire_bytes(content) for content in contents.values()),
            "wire_up": sum(answer.wire for answer in answers.values()),
            "seconds": seconds,
        }
        append_line(self.journal, json.dumps(line))

    def who(self, pairs: Sequence[tuple[Job, Done]]) -> dict[str, Any]:
        """Return who answered and who failed; where that is a secret, how many and why."""
        if self.hides:
            reasons = [{"reason": done.reason} for _, done in pairs if done.reason]
            return {"replied": len(pairs) - len(reasons), "failed": reasons}
        return {
            "replied": sorted(j.task.client for j, d in pairs if not d.reason),
            "failed": [{"client": j.task.client, "reason": d.reason} for j, d in pairs if d.reason],
        }


def version(state: Mapping[str, Tensor]) -> int:
    """Return the number of the version that a client's state is."""
    return int(state[VERSION]) if state else 0


def reference(number: int) -> dict[str, Tensor]:
    """Return what the server keeps of a client's state: the number of its version."""
    return {VERSION: torch.tensor(number)} if number else {}
