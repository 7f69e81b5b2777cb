"""Who does the tasks of one wave: this process, worker processes or other machines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from torch import Tensor

from fedtail.engines.runtime import Clock, Runtime, Withheld
from fedtail.engines.together import BlockAnswer, blocks, done_together
from fedtail.errors import blame, blaming
from fedtail.forms import Form, as_stacks, defect
from fedtail.metrics import Evaluation
from fedtail.plugins import first_line_and_place
from fedtail.protocol import ClientId, Payload, Task, Tensors, Update
from fedtail.totals import StackedUpdates, Sums

State = dict[str, Tensor]
HELD_BYTES = 1 << 20
"""How much of answers is held back, so that small ones are added up together."""


@dataclass(frozen=True)
class Job:
    """A task, the state its client had, and when it happens."""

    task: Task
    state: State
    clock: Clock

    def __str__(self) -> str:
        return f"client {self.task.client}, action '{self.task.action}', round {self.clock.round}"


@dataclass(frozen=True)
class Done:
    """What came of a job: an answer with the client's new state, or the reason why not.

    Attributes
    ----------
    payload
        The answer, unless it was checked and added up where it was made.
    error
        What the client half raised, if that is the reason.
    added
        The bytes of an answer that was added up where it was made.
    """

    payload: Payload | None
    state: State
    reason: str = ""
    error: Exception | None = None
    added: int | None = None


class Executor(Protocol):
    """Does jobs and tests models."""

    def perform(self, jobs: Sequence[Job], total: Sums | None = None) -> Iterable[Done]:
        """Do the jobs; the results are in the order of the jobs, each as soon as it is there.

        Parameters
        ----------
        jobs
            No client stands there twice.
        total
            Where good answers may be added up instead of being returned; none if every one of them
            is needed.
        """

    def evaluate(self, tensors: Tensors) -> Evaluation:
        """Test a model on the whole test set."""

    def close(self) -> None:
        """Stop what was started."""


def attempt(runtime: Runtime, job: Job) -> Done:
    """Do one job; whatever the client half raises becomes a reason."""
    state = dict(job.state)
    try:
        return Done(runtime.perform(job.task, state, job.clock), state)
    except Withheld as error:
        return Done(None, job.state, str(error))
    except Exception as error:  # a client may fail in any way; who asked decides what it means
        blame(error, str(job))
        return Done(None, job.state, first_line_and_place(error), error)


def add_up(job: Job, done: Done, form: Form, announced: int | None, total: Sums) -> Done:
    """Add an answer to a sum, or say what is wrong with it.

    Parameters
    ----------
    job, done
        What was to be done, and an answer to it.
    form, announced
        What is declared for the task, and how many samples the client has.
    total
        What it is added to.
    """
    if done.payload is None:
        return done
    reason = defect(done.payload, form, announced)
    if reason:
        return Done(None, job.state, reason)
    total.add(Update(job.task.client, done.payload))
    return Done(None, done.state, added=done.payload.nbytes)


class Arrival(NamedTuple):
    """What came of a job, what is declared for its task, and how many samples its client has."""

    job: Job
    done: Done
    form: Form
    announced: int | None


class Intake:
    """Checks answers and adds them up: small ones together, which takes a fraction of the time.

    What comes of it is the same. Held back are at most `HELD_BYTES` of answers, and the one that
    is more.

    Parameters
    ----------
    total
        What answers are added to.
    """

    def __init__(self, total: Sums) -> None:
        self.total = total
        self._held: list[Arrival] = []
        self._bytes = 0

    def put(self, answer: Arrival) -> list[tuple[ClientId, Done]]:
        """Take one answer, and return what came of those that are settled by now (`add_up`)."""
        self._held.append(answer)
        self._bytes += 0 if answer.done.payload is None else answer.done.payload.nbytes
        return self.settle() if self._bytes > HELD_BYTES else []

    def settle(self) -> list[tuple[ClientId, Done]]:
        """Add up all that was held back, and return what came of it, form by form."""
        held, self._held, self._bytes = self._held, [], 0
        settled = [(a.job.task.client, a.done) for a in held if a.done.payload is None]
        sent = [a for a in held if a.done.payload is not None]
        for form in {id(a.form): a.form for a in sent}.values():
            settled += self._settled(form, [a for a in sent if a.form is form])
        return settled

    def _settled(self, form: Form, answers: list[Arrival]) -> list[tuple[ClientId, Done]]:
        payloads = [a.done.payload for a in answers if a.done.payload is not None]
        announced = [a.announced for a in answers]
        stacks = as_stacks(payloads, form, announced) if len(answers) > 1 else None
        clients = [a.job.task.client for a in answers]
        if stacks is None:
            done = [add_up(a.job, a.done, form, a.announced, self.total) for a in answers]
        else:
            scalars = [Payload({}, p.scalars) for p in payloads]
            self.total.add_stack(StackedUpdates(clients, stacks, scalars))
            done = [
                Done(None, a.done.state, added=p.nbytes)
                for a, p in zip(answers, payloads, strict=True)
            ]
        return list(zip(clients, done, strict=True))


def done_in_block(answer: BlockAnswer) -> Done:
    """Return what came of a job that was done together with others."""
    return Done(answer.payload, answer.state, added=answer.added)


@dataclass(frozen=True)
class Serial:
    """One process does everything itself.

    Attributes
    ----------
    drop
        Go on when a client half raises, instead of raising it here.
    """

    runtime: Runtime
    drop: bool = field(default=False, kw_only=True)

    def perform(self, jobs: Sequence[Job], total: Sums | None = None) -> Iterable[Done]:
        """Do the jobs block by block; the answers of one block, or a single one, are in memory."""
        for block in blocks(self.runtime, jobs):
            found = done_together(self.runtime, block, total)
            for job, answer in zip(block, found, strict=True):
                yield self._one(job) if answer is None else done_in_block(answer)

    def _one(self, job: Job) -> Done:
        done = attempt(self.runtime, job)
        if isinstance(done.error, StopIteration) and not self.drop:
            # Who asks for one answer after the other would take it for the end of them.
            with blaming(str(job)):
                raise RuntimeError("a client half raised StopIteration") from done.error
        if done.error is not None and not self.drop:
            raise done.error
        return done

    def evaluate(self, tensors: Tensors) -> Evaluation:
        """Test a model on the whole test set."""
        tested = self.runtime.load_tested(tensors)
        parts = [self.runtime.evaluate(tested, *part) for part in self.runtime.test_ranges()]
        return sum(parts, start=Evaluation.empty(self.runtime.federation.num_classes))

    def close(self) -> None:
        """Nothing was started."""
