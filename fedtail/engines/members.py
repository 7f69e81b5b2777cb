"""The clients of a block: their data, streams and states, and how they are trained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from fedtail.data.augment import joined
from fedtail.data.dataset import rows_at
from fedtail.engines.runtime import FIRST_TURN, Runtime
from fedtail.engines.trained import Spanned, Trained
from fedtail.forms import Form, Mean
from fedtail.losses import LossContext
from fedtail.methods import FedAvg
from fedtail.models.split_model import Output, SplitModel
from fedtail.protocol import Client, Payload, client_stream
from fedtail.rng import derive
from fedtail.standardise import without_constants
from fedtail.training import ClassPrior, GlobalPrior, ProxyPrior
from fedtail.training.block import Batches, ClientBlock, Gradients, Stack, Vmapped, planned_batches
from fedtail.training.linear_block import LinearGradients, Span, is_linear, is_plain

if TYPE_CHECKING:
    from fedtail.engines.executor import Job

TOLD_OR_COUNTED = (ClassPrior.counts, GlobalPrior.counts, ProxyPrior.counts)
"""Priors that are what the server told, if it did and they listen, and else a client's counts."""
WIDE = 4
"""Features that are so many times as wide as a client has samples are not multiplied out."""
KEPT_INPUTS = 1 << 24
"""BlockInputs of a block that have fewer numbers than this are normalised once, and kept."""


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
        labels = rows_at(whole.samples.y, positions)
        self.data = replace(whole, positions=positions, labels=labels, channels_last=False)
        if whole.store is not None:  # a row's last bits depend on those beside it
            for k, part in zip(self.ids, parts, strict=True):
                self.federation.client(k, self.told).batch(torch.arange(len(part)))
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
        prior = self.method.prior
        if not self.overrides("context") and type(prior).counts in TOLD_OR_COUNTED:
            rows, classes = len(self.jobs), self.federation.num_classes
            place = torch.arange(rows).repeat_interleave(torch.tensor(self.sizes)) * classes
            counts = torch.bincount(place + self.data.labels, minlength=rows * classes)
            own = counts.view(rows, classes).to(self.runtime.device, torch.float32)
            told = None
            if type(prior).counts is not ClassPrior.counts:
                told = self.payload.tensors.get("prior/counts")
            common = None if told is None else told.to(self.runtime.device)
            return Stack(
                {
                    "counts": own,
                    "prior": own if common is None else common,
                    "round": self.round,
                    "rounds": self.rounds,
                },
                {
                    "counts": 0,
                    "prior": 0 if common is None else None,
                    "round": None,
                    "rounds": None,
                },
            )
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

    def trained(self, form: Form | None = None) -> Trained:
        """Train them.

        Parameters
        ----------
        form
            What is declared, if answers are added up and nobody needs one by itself.
        """
        if form is not None and self.is_wide(form):
            return self.spanned()
        with self.method.moving(self.payload, self.model):
            return self.stacked()

    def stacked(self) -> Trained:
        """Train them with a stack of models."""
        method, model, start = self.method, self.model, self.starting()
        aux = self.aux()
        trainable = model.trainable()
        same = aliases(model)
        block = ClientBlock(
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
        plan, steps = planned_batches(method.local, method.sampler, self.labels, seeds, bool(norms))
        model.train()
        gradients, inputs = self.kernel(shared)
        for some in plan:
            x, y = inputs.batch(some)
            block.step(gradients, some.rows, x, y, norms)
        tensors = {**block.weights, **block.buffers}
        tensors |= {name: tensors[first] for name, first in same.items()}
        return self.answers({n: t.cpu() for n, t in tensors.items()}, steps, aux)

    def is_wide(self, form: Form) -> bool:
        """Whether the weights of a linear classifier need not be formed to add them up."""
        local, model = self.method.local, self.model
        own = ("local_loss", "adjust", "at_start", "starting", "kept", "sent", "extras")
        if local.weight_decay or local.clip is not None or self.overrides(*own):
            return False
        if not is_linear(model) or model.feature_dim < WIDE * max(self.sizes):
            return False
        place = f"model/{model.classifier_name}.weight".replace("/.", "/")
        how = form.how.get(place)
        return isinstance(how, Mean) and not how.within

    def spanned(self) -> Trained:
        """Train wide linear classifiers, of which only the sum is formed."""
        method = self.method
        start = method.starting(self.payload, {})
        self.model.load(start)
        self.model.train()
        gradients, inputs = self.kernel(Stack())
        if not isinstance(gradients, LinearGradients) or inputs.held is None:
            raise TypeError("not linear")
        (h, y), logits = inputs.held, inputs.logits
        first = torch.tensor([0, *self.sizes[:-1]]).cumsum(0)
        own = torch.arange(len(h)) - first.repeat_interleave(torch.tensor(self.sizes))
        name, bias = (f"{gradients.prefix}{part}" for part in ("weight", "bias"))
        device = self.runtime.device
        first_bias = start[bias].to(device) if bias in start else None
        span = Span(
            self.padded(h, own),
            self.padded(logits, own),
            start[name].to(device),
            first_bias,
            gradients,
            method.local,
            method.local.rate(self.round, self.rounds),
        )
        seeds = [self.seed("batches", row) for row in range(len(self.jobs))]
        plan, steps = planned_batches(method.local, method.sampler, self.labels, seeds, pairs=False)
        for some in plan:
            span.step(some.rows, own[some.places], y[some.places])
        tensors = {} if first_bias is None else {bias: (first_bias + span.moved).cpu()}
        found = self.answers(tensors, steps, [])
        return Spanned(**vars(found), span=span, weight=f"model/{name}")

    def padded(self, rows: Tensor, own: Tensor) -> Tensor:
        """Return rows of all samples client by client, with zeros where one has fewer samples.

        Parameters
        ----------
        rows
            One row a sample.
        own
            The place of each sample among those of its client.
        """
        clients, most = len(self.sizes), max(self.sizes)
        if most == min(self.sizes):
            return rows.view(clients, most, -1)
        wide = rows.new_zeros(clients, most, rows.shape[1])
        wide[torch.arange(clients).repeat_interleave(torch.tensor(self.sizes)), own] = rows
        return wide

    def kernel(self, aux: Stack) -> tuple[Gradients, BlockInputs]:
        """Return how gradients are computed, and from what."""
        method, model = self.method, self.model
        inputs = BlockInputs(self)
        plain = is_plain(method.loss)
        linear = is_linear(model) and not self.overrides("local_loss") and inputs.constant
        told = Stack() if linear and plain else self.context()
        if linear:
            inputs.as_features(model)
            prefix = f"{model.classifier_name}." if model.classifier_name else ""

            def at(z: Tensor, h: Tensor, y: Tensor, told: Any) -> Tensor:
                return method.loss(Output(z, h), y, LossContext(**told))

            return LinearGradients(at, prefix, told, plain), inputs

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


class BlockInputs:
    """Where the batches of a block come from.

    Parameters
    ----------
    of
        Whose they are.
    """

    def __init__(self, of: Members) -> None:
        self.data, self.held = of.data, None
        self.logits = torch.empty(0)
        shape = of.federation.dataset.input_shape
        images = len(shape) == 3 and self.data.augment.on
        self.streams = (
            [torch.Generator().manual_seed(of.seed("augment", row)) for row in range(len(of.jobs))]
            if images
            else []
        )
        if len(self.data) * math.prod(shape) <= KEPT_INPUTS:
            self.held = self.data.batch(torch.arange(len(self.data)))

    @property
    def constant(self) -> bool:
        """Whether a sample is the same in every pass, and all of them are at hand."""
        return not self.streams and self.held is not None

    def as_features(self, model: SplitModel) -> None:
        """Put features in the place of inputs, where they do not change; keep what came of them."""
        if self.held is not None:
            with torch.no_grad():
                self.logits, features, _ = model.output(self.held[0])
            self.held = features, self.held[1]

    def batch(self, some: Batches) -> tuple[Tensor, Tensor]:
        """Return inputs and labels of one batch each, (clients, size, ...)."""
        index = some.places
        flat, held = index.flatten(), self.held
        found = self.data.batch(flat) if held is None else [rows_at(t, flat) for t in held]
        x, y = (t.view(*index.shape, *t.shape[1:]) for t in found)
        if not self.streams:
            return x, y
        rows = range(len(self.streams))
        chosen = rows[some.rows] if isinstance(some.rows, slice) else some.rows.tolist()
        augment, size = self.data.augment, x.shape[-2:]
        draws = [augment.draws(index.shape[1], size, self.streams[row]) for row in chosen]
        constants = self.data.mean, self.data.std
        changed = augment.changed(x.flatten(0, 1), joined(draws), constants)
        return changed.reshape(x.shape), y


def aliases(model: SplitModel) -> dict[str, str]:
    """Return the further names of parameters that are tied, each with the name it is trained by."""
    names = {id(p): name for name, p in model.trainable().items()}
    return {n: names[id(t)] for n, t in model.live() if id(t) in names and names[id(t)] != n}
