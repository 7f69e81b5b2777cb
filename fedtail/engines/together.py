"""Clients that train as one computation: which of them, and what comes of it.

A method can train together if it overrides no hook that may do anything (`HOOKS`), but only the
functions of tensors behind them. Blocks are cut from the list of tasks, before anybody is given
them, so that what a run computes does not depend on how many processes do it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.modules.dropout import _DropoutNd

from fedtail.data.augment import joined
from fedtail.engines.runtime import FIRST_TURN, Runtime
from fedtail.forms import Form, defect, sound
from fedtail.losses import LossContext
from fedtail.methods import FedAvg
from fedtail.methods.base import Method
from fedtail.models.split_model import Output, SplitModel
from fedtail.protocol import Client, Payload, client_stream
from fedtail.reduce import within_frames
from fedtail.rng import derive
from fedtail.standardise import without_constants
from fedtail.totals import StackedUpdates, Sums
from fedtail.training.block import Batches, Block, Gradients, Stack, Vmapped, planned
from fedtail.training.linear_block import Linear, is_linear, is_plain

if TYPE_CHECKING:
    from fedtail.engines.executor import Job

HOOKS = (
    "train",
    "load",
    "start",
    "step",
    "prepare",
    "batch_loss",
    "after_backward",
    "after_step",
    "keep_buffers",
    "reply",
)
"""What may do anything, and is FedAvg's own in a method whose clients can train together."""
FEWEST = 3
"""Fewer clients are trained one by one."""
AT_ONCE = 1 << 24
"""Inputs of a block that have fewer numbers than this are normalised once, and kept."""


def can_train_together(method: type[Method[Any]]) -> bool:
    """Whether clients of a method can train together, as far as its class tells."""
    return (
        issubclass(method, FedAvg)
        and not method.pooled
        and all(getattr(method, hook) is getattr(FedAvg, hook) for hook in HOOKS)
    )


def why_alone(runtime: Runtime) -> str:
    """Return why clients cannot train together, in a clause; nothing if nothing speaks against."""
    method = runtime.method
    if not isinstance(method, FedAvg) or not can_train_together(type(method)):
        return f"'{method.name}' does more with a client than functions of tensors"
    if method.local.optimizer != "sgd":
        return f"the optimiser is {method.local.optimizer}, not sgd"
    if runtime.client_side is not None:
        return "every client protects its own update"
    if any(isinstance(layer, _DropoutNd) and layer.p for layer in runtime.model.modules()):
        return "the network has dropout, which draws other numbers for many clients at once"
    return ""


def in_blocks(runtime: Runtime, job: Job) -> bool:
    """Whether clients that are given such a task train together."""
    return runtime.together > 1 and job.task.action == "train"


def arranged(runtime: Runtime, jobs: list[Job]) -> list[Job]:
    """Return the jobs in the order in which they are cut into blocks: the largest clients first."""
    if not any(in_blocks(runtime, job) for job in jobs):
        return jobs
    first = {id(job.task.payload): number for number, job in reversed(list(enumerate(jobs)))}
    size = runtime.federation.size
    return sorted(jobs, key=lambda j: (first[id(j.task.payload)], -size(j.task.client)))


def blocks(runtime: Runtime, jobs: Sequence[Job]) -> Iterator[list[Job]]:
    """Cut jobs into blocks of clients that train together, and single ones."""
    for _, same in groupby(jobs, key=lambda job: (job.task.action, id(job.task.payload))):
        some = list(same)
        most = runtime.together if in_blocks(runtime, some[0]) else 1
        count = math.ceil(len(some) / most)
        ends = [len(some) * number // count for number in range(count + 1)]
        yield from (some[a:b] for a, b in pairwise(ends))


def done_together(runtime: Runtime, jobs: Sequence[Job], total: Sums | None) -> list[Answer | None]:
    """Train the clients of a block together, and add up their answers where there is a sum.

    Nothing stands in the place of a client that is to be trained alone: of all, if the block
    raises; of those whose answer is not what was declared. What they raise or send then is theirs.
    """
    if len(jobs) < FEWEST or not in_blocks(runtime, jobs[0]):
        return [None] * len(jobs)
    try:
        found = Members(runtime, jobs).trained()
    except Exception:  # as one computation; alone, each of them may raise it or not
        return [None] * len(jobs)
    if total is None:
        return [Answer(found.payload(row), state) for row, state in enumerate(found.states)]
    good = found.sound(within_frames(runtime.form(jobs[0].task), total.frames))
    total.add_stack(found.updates(good))
    sizes = found.nbytes()
    return [
        Answer(None, found.states[row], sizes[row]) if good[row] else None
        for row in range(len(jobs))
    ]


class Answer(NamedTuple):
    """What came of one client's task: an answer, or how large the one is that was added up."""

    payload: Payload | None
    state: dict[str, Tensor]
    added: int | None = None


@dataclass(frozen=True)
class Trained:
    """What came of a block.

    Attributes
    ----------
    clients, announced
        Who they are, and how many samples each has.
    tensors
        What they answer, by flat names, with a dimension of clients in front.
    extras
        What each answers beside it.
    states
        What each remembers.
    """

    clients: list[int]
    announced: list[int]
    tensors: dict[str, Tensor]
    extras: list[Payload]
    states: list[dict[str, Tensor]]

    def payload(self, row: int) -> Payload:
        """Return the answer of one client."""
        own = {name: tensor[row].clone() for name, tensor in self.tensors.items()}
        more = self.extras[row]
        return Payload({**own, **more.tensors}, more.scalars)

    def sound(self, form: Form) -> list[bool]:
        """Whether each answer is what was declared."""
        mine = {n: look for n, look in form.tensors.items() if n in self.tensors}
        rest = replace(form, tensors={n: t for n, t in form.tensors.items() if n not in mine})
        if mine.keys() != self.tensors.keys():
            return [False] * len(self.clients)
        good = sound(self.tensors, mine).tolist() if mine else [True] * len(self.clients)
        return [
            ok and not defect(more, rest, samples)
            for ok, more, samples in zip(good, self.extras, self.announced, strict=True)
        ]

    def updates(self, good: Sequence[bool]) -> StackedUpdates:
        """Return the good answers as what is added up."""
        if all(good):
            return StackedUpdates(self.clients, self.tensors, self.extras)
        rows = [row for row, ok in enumerate(good) if ok]
        return StackedUpdates(
            [self.clients[row] for row in rows],
            {name: tensor[rows] for name, tensor in self.tensors.items()},
            [self.extras[row] for row in rows],
        )

    def nbytes(self) -> list[int]:
        """Return how large each answer is."""
        each = sum(t[0].numel() * t.element_size() for t in self.tensors.values())
        return [each + more.nbytes for more in self.extras]


class Members:
    """The clients of a block, as they are trained.

    Parameters
    ----------
    runtime
        The data, the method and the model.
    jobs
        One task each, all with the same payload.
    """

    def __init__(self, runtime: Runtime, jobs: Sequence[Job]) -> None:
        self.runtime, self.jobs = runtime, jobs
        self.method = cast(FedAvg[Any], runtime.method)
        self.model, self.federation = runtime.model, runtime.federation
        self.payload, self.told = without_constants(jobs[0].task.payload)
        self.states = [dict(job.state) for job in jobs]
        self.ids = [job.task.client for job in jobs]
        clock = jobs[0].clock
        self.round, self.rounds = clock.round, clock.rounds
        parts = [self.federation.positions(k) for k in self.ids]
        self.sizes = [len(part) for part in parts]
        whole = self.federation.client(self.ids[0], self.told)
        positions = torch.cat(parts)
        labels = whole.samples.y[positions]
        self.data = replace(whole, positions=positions, labels=labels, channels_last=False)
        self.labels = torch.split(labels, self.sizes)

    def overrides(self, *hooks: str) -> bool:
        """Whether the method has one of these hooks of its own."""
        return any(getattr(type(self.method), h) is not getattr(FedAvg, h) for h in hooks)

    def seed(self, purpose: str, row: int) -> int:
        """Return the seed of a stream of one client's task."""
        clock = self.jobs[row].clock
        stream = client_stream(purpose, FIRST_TURN[clock.phase] + clock.turn)
        return derive(self.runtime.seed, stream, clock.round, self.ids[row])

    @cached_property
    def clients(self) -> list[Client]:
        """The clients, for hooks that want one."""
        return [
            self.runtime.client(job.task.client, self.told, state, job.clock)
            for job, state in zip(self.jobs, self.states, strict=True)
        ]

    def contexts(self) -> list[LossContext]:
        """Return what the loss of each may know beside the batch."""
        return [self.method.context(self.payload, client) for client in self.clients]

    def context(self) -> Stack:
        """Return the contexts as one."""
        return Stack.of([vars(context) for context in self.contexts()])

    def starting(self) -> dict[str, Tensor]:
        """Return what training starts from, with a dimension of clients in front."""
        if not self.overrides("starting", "kept") and self.method.buffers != "local":
            common = self.method.starting(self.payload, {})
            return {
                name: t.to(self.runtime.device).expand(len(self.jobs), *t.shape).clone()
                for name, t in common.items()
            }
        each = [self.method.starting(self.payload, state) for state in self.states]
        return {
            name: torch.stack([start[name] for start in each]).to(self.runtime.device)
            for name in each[0]
        }

    def aux(self) -> list[Any]:
        """Return what `at_start` makes for each."""
        if not self.overrides("at_start"):
            return [None] * len(self.jobs)
        found, model = [], self.model
        common = not self.overrides("starting", "kept") and self.method.buffers != "local"
        for row, (client, context) in enumerate(zip(self.clients, self.contexts(), strict=True)):
            if not (common and row):
                model.load(self.method.starting(self.payload, self.states[row]))
            found.append(self.method.at_start(self.payload, client, context))
        return found

    def trained(self) -> Trained:
        """Train them."""
        method, model, start = self.method, self.model, self.starting()
        aux = self.aux()
        trainable = model.trainable()
        same = aliases(model)
        block = Block(
            {name: start[name] for name in trainable},
            {n: t for n, t in start.items() if n not in trainable and n not in same},
            method.local,
            method.local.rate(self.round, self.rounds),
        )
        shared = Stack.of(aux) if self.overrides("local_loss", "adjust") else Stack()
        if self.overrides("adjust"):
            block.adjust = lambda g, w, rows: method.adjust(g, w, shared.of_rows(rows))
        norms = model.batch_norms()
        seeds = [self.seed("batches", row) for row in range(len(self.jobs))]
        plan, steps = planned(method.local, method.sampler, self.labels, seeds, bool(norms))
        model.train()
        gradients, inputs = self.kernel(shared)
        for some in plan:
            x, y = inputs.batch(some)
            block.step(gradients, some.rows, x, y, norms)
        tensors = {**block.weights, **block.buffers}
        tensors |= {name: tensors[first] for name, first in same.items()}
        return self.answers({n: t.cpu() for n, t in tensors.items()}, steps, aux)

    def kernel(self, aux: Stack) -> tuple[Gradients, Inputs]:
        """Return how gradients are computed, and from what."""
        method, model = self.method, self.model
        inputs = Inputs(self)
        plain = is_plain(method.loss)
        linear = is_linear(model) and not self.overrides("local_loss") and inputs.constant
        told = Stack() if linear and plain else self.context()
        if linear:
            inputs.as_features(model)
            prefix = f"{model.classifier_name}."

            def at(z: Tensor, h: Tensor, y: Tensor, told: Any) -> Tensor:
                return method.loss(Output(z, h), y, LossContext(**told))

            return Linear(at, prefix, told, plain), inputs

        def loss(x: Tensor, y: Tensor, told: Any, aux: Any) -> Tensor:
            return method.local_loss(model, x, y, LossContext(**told), aux)

        return Vmapped(loss, model, told, aux), inputs

    def answers(self, tensors: dict[str, Tensor], steps: list[int], aux: list[Any]) -> Trained:
        """Return what each answers and remembers."""
        method, model = self.method, self.model
        sent = method.sent(self.payload, model, tensors)
        kept = method.kept(model)
        rows = range(len(self.jobs))
        for row, state in enumerate(self.states):
            state.update({place: tensors[name][row].clone() for place, name in kept.items()})
        if self.overrides("extras"):
            extras = [
                method.extras(
                    self.clients[row],
                    steps[row],
                    {name: tensor[row] for name, tensor in tensors.items()},
                    aux[row],
                )
                for row in rows
            ]
        else:
            extras = [
                Payload({}, {"samples": n, "steps": s})
                for n, s in zip(self.sizes, steps, strict=True)
            ]
        return Trained(
            self.ids,
            [self.federation.size(k) for k in self.ids],
            {place: tensors[name] for place, name in sent.items()},
            extras,
            self.states,
        )


class Inputs:
    """Where the batches of a block come from.

    Parameters
    ----------
    of
        Whose they are.
    """

    def __init__(self, of: Members) -> None:
        self.data, self.held = of.data, None
        shape = of.federation.dataset.input_shape
        images = len(shape) == 3 and self.data.augment.on
        self.streams = (
            [torch.Generator().manual_seed(of.seed("augment", row)) for row in range(len(of.jobs))]
            if images
            else []
        )
        if len(self.data) * math.prod(shape) <= AT_ONCE:
            self.held = self.data.batch(torch.arange(len(self.data)))

    @property
    def constant(self) -> bool:
        """Whether a sample is the same in every pass, and all of them are at hand."""
        return not self.streams and self.held is not None

    def as_features(self, model: SplitModel) -> None:
        """Put features in the place of inputs, where they do not change."""
        if self.held is not None:
            with torch.no_grad():
                self.held = model.features(self.held[0]), self.held[1]

    def batch(self, some: Batches) -> tuple[Tensor, Tensor]:
        """Return inputs and labels of one batch each, (clients, size, ...)."""
        index = some.places
        if self.held is not None:
            x, y = self.held[0][index], self.held[1][index]
        else:
            x, y = self.data.batch(index.flatten())
            x, y = x.view(*index.shape, *x.shape[1:]), y.view(index.shape)
        if not self.streams:
            return x, y
        rows = range(len(self.streams))
        chosen = rows[some.rows] if isinstance(some.rows, slice) else some.rows.tolist()
        augment, size = self.data.augment, x.shape[-2:]
        draws = [augment.draws(index.shape[1], size, self.streams[row]) for row in chosen]
        return augment.changed(x.flatten(0, 1), joined(draws)).reshape(x.shape), y


def aliases(model: SplitModel) -> dict[str, str]:
    """Return the further names of parameters that are tied, each with the name it is trained by."""
    names = {id(p): name for name, p in model.trainable().items()}
    return {n: names[id(t)] for n, t in model.live() if id(t) in names and names[id(t)] != n}
