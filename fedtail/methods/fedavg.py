"""FedAvg.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-Efficient Learning of Deep Networks
from Decentralized Data", AISTATS 2017.

Each round the server sends the model to a cohort, the clients train it on their own data, and the
server averages what comes back, weighted by the number of samples. Every other method derives from
this one and overrides a hook: `broadcast`, `round`, `aggregate` on the server; on the client
`prepare`, `batch_loss`, `after_backward`, `after_step`, which may do anything, or the functions of
tensors that stand behind them, `at_start`, `local_loss`, `adjust` and `extras`. A method that
overrides only these can train many clients as one computation (`fedtail.engines.together`).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Literal, TypeVar, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from fedtail.forms import COUNT, SAMPLES, First, Form, like
from fedtail.losses import CrossEntropy, LocalLoss, LossContext
from fedtail.methods.base import Asks, Method, action
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Client, Exchange, Payload, Server, Task, Tensors, grouped
from fedtail.reduce import Reduced
from fedtail.training import (
    BatchSampler,
    ClassPrior,
    LocalPrior,
    LocalTraining,
    ServerOptimizer,
    ServerSGD,
    Shuffled,
    normalisable,
)
from fedtail.training.local_run import LocalRun as LocalRun
from fedtail.training.sgd import differentiate


@dataclass(frozen=True)
class ModelState:
    """What the server keeps.

    Attributes
    ----------
    model
        The global model's parameters and buffers.
    prior
        Class counts that the clients are told, if the method's prior needs telling.
    memory
        What the server optimiser remembers of each parameter.
    """

    model: dict[str, Tensor]
    prior: Tensor | None = None
    memory: dict[str, dict[str, Tensor]] = field(default_factory=dict)


M = TypeVar("M", bound=ModelState)


@Method.register("fedavg")
class FedAvg(Method[M], Generic[M]):
    """Train locally, average by sample count."""

    family: ClassVar[str] = "averaging"
    paper: ClassVar[str] = (
        "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized "
        "Data, AISTATS 2017"
    )

    trains: ClassVar[tuple[str, ...]] = ("train",)
    """The actions that are local training as the hooks describe it: they can be done together."""

    local: LocalTraining = Field(LocalTraining(), description="optimiser, rate, epochs, batch size")
    loss: LocalLoss = Field(CrossEntropy(), description="the loss that clients minimise")
    sampler: BatchSampler = Field(Shuffled(), description="how clients draw their batches")
    prior: ClassPrior = Field(LocalPrior(), description="the class prior of prior-based losses")
    buffers: Literal["average", "local", "first"] = Field(
        "average",
        description="BatchNorm statistics: averaged like weights; kept by each client, their "
        "average used for testing only; or taken from the first client of the cohort",
    )
    server_optimizer: ServerOptimizer = Field(
        ServerSGD(), description="what the server makes of the average"
    )

    def check_model(self, model: SplitModel) -> None:
        """Refuse a model off which the prior cannot be read."""
        self.prior.check(model)

    # Server half

    def init(self, model: SplitModel, server: Server) -> M:
        """Start from the model's initial weights."""
        return self.new_state(model.tensors())

    def new_state(self, tensors: dict[str, Tensor]) -> M:
        """Return the state around initial weights; methods with a larger state override this."""
        return cast(M, ModelState(tensors))

    def setup(self, s: M, server: Server) -> Exchange[M]:
        """Let the prior ask what it needs."""
        prior = yield from self.prior.setup(s.model, server)
        return replace(s, prior=prior)

    def round(self, s: M, server: Server) -> Exchange[M]:
        """One exchange with one cohort."""
        payload = self.broadcast(s, server)
        found = yield [Task(client, "train", payload) for client in server.cohort()]
        return self.aggregate(s, found, server)

    def broadcast(self, s: M, server: Server) -> Payload:
        """Return what the cohort is sent."""
        prior = {} if s.prior is None else {"prior/counts": s.prior}
        return Payload({**grouped("model", s.model), **prior})

    def aggregate(self, s: M, found: Reduced, server: Server) -> M:
        """w ← Σ p_k w_k / Σ p_k, or what the server optimiser makes of it."""
        mean = found["model"]
        return self.server_step(s, mean, server) if mean else s

    def server_step(self, s: M, mean: Tensors, server: Server) -> M:
        """Give the parameters to the server optimiser; buffers take the mean itself.

        What `mean` does not name stays as it is.
        """
        parameters = server.model.parameter_names()
        model, memory = {**s.model, **mean}, dict(s.memory)
        for name in (name for name in mean if name in parameters):
            old, known = s.model[name], s.memory.get(name, {})
            model[name], new = self.server_optimizer.step(old, mean[name], known)
            if new:
                memory[name] = new
        return replace(s, model=model, memory=memory)

    def asks(self) -> Asks:
        """Ask what the prior asks, and then a cohort a round."""
        first = self.buffers == "first"
        return Asks(
            setup=self.prior.exchanges,
            single="buffers = 'first' takes the statistics of one client" if first else "",
        )

    def eval_model(self, s: M) -> Tensors:
        """Return the global model."""
        return s.model

    # Client half

    def train_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare the model, averaged by samples, and how much it was trained."""
        form = Form().group("model", like(model.live()))
        if self.buffers == "first":
            buffers = like((n, t) for n, t in model.live() if n not in model.parameter_names())
            form = form.group("model", buffers, First())
        return form.numbers(samples=SAMPLES, steps=COUNT)

    def inform_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare what the prior asks for."""
        return self.prior.form(task, model, classes)

    @action
    def inform(self, payload: Payload, client: Client) -> Payload:
        """Answer the preliminary question of the prior."""
        return self.prior.report(payload, client, self.local)

    @action
    def train(self, payload: Payload, client: Client) -> Payload:
        """Train the received model on the local data and send it back."""
        self.load(payload, client)
        run = self.start(payload, client)
        generator = client.generator("batches")
        augmentation = client.generator("augment") if client.data.is_augmented else None
        norms = run.model.batch_norms()
        run.model.train()
        for index in self.local.batches(self.sampler, client.data.labels, generator, bool(norms)):
            x, y = client.data.batch(index, augmentation)
            run.index = index
            with normalisable(norms, len(y)):
                self.step(run, x, y)
            run.steps += 1
        self.keep_buffers(client)
        return self.reply(run)

    def moving(self, payload: Payload, model: SplitModel) -> AbstractContextManager[None]:
        """Let only that part of the model move which a task of `trains` is about: here all."""
        return nullcontext()

    def load(self, payload: Payload, client: Client) -> None:
        """Put what training starts from into the resident model."""
        client.model.load(self.starting(payload, client.state))

    def keep_buffers(self, client: Client) -> None:
        """Remember what is to be kept until the client's next round."""
        kept = self.kept(client.model)
        tensors = client.model.tensors() if kept else {}
        client.state.update({place: tensors[name] for place, name in kept.items()})

    def start(self, payload: Payload, client: Client) -> LocalRun:
        """Return the local run, with a new optimiser and what `prepare` makes."""
        context = self.context(payload, client)
        trained = client.model.trainable().values()
        optimizer = self.local.make_optimizer(trained, client.round, client.rounds)
        run = LocalRun(client, payload, client.model, context, optimizer)
        run.aux = self.prepare(run)
        return run

    def context(self, payload: Payload, client: Client) -> LossContext:
        """Return what the loss may know beside the batch."""
        told = payload.tensors.get("prior/counts")
        return LossContext(
            counts=client.counts.to(client.device, torch.float32),
            prior=self.prior.counts(told, client).to(client.device),
            round=client.round,
            rounds=client.rounds,
        )

    def step(self, run: LocalRun, x: Tensor, y: Tensor) -> None:
        """One batch: loss, gradient, clipping, optimiser, with the hooks between."""
        run.optimizer.zero_grad(set_to_none=True)
        differentiate(self.batch_loss(run, x, y))
        self.after_backward(run)
        if self.local.clip is not None:
            nn.utils.clip_grad_norm_(run.model.parameters(), self.local.clip)
        run.optimizer.step()
        self.after_step(run)

    def prepare(self, run: LocalRun) -> Any:
        """Make what the other hooks need, once a task; it is theirs as ``run.aux``."""
        return self.at_start(run.payload, run.client, run.context)

    def batch_loss(self, run: LocalRun, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of one batch."""
        return self.local_loss(run.model, x, y, run.context, run.aux)

    def after_backward(self, run: LocalRun) -> None:
        """Change gradients before they are clipped and used."""
        if type(self).adjust is FedAvg.adjust:
            return
        moved = {n: p for n, p in run.model.trainable().items() if p.grad is not None}
        gradients = {name: p.grad for name, p in moved.items() if p.grad is not None}
        with torch.no_grad():
            self.adjust(gradients, moved, run.aux)

    def after_step(self, run: LocalRun) -> None:
        """Change weights after the optimiser did."""

    def reply(self, run: LocalRun) -> Payload:
        """Return what the client sends back."""
        tensors = run.model.tensors()
        more = self.extras(run.client, run.steps, tensors, run.aux)
        sent = self.sent(run.payload, run.model, tensors)
        own = {place: tensors[name] for place, name in sent.items()}
        return Payload({**own, **more.tensors}, more.scalars)

    # Client half, as functions of tensors: what they are given may be of many clients at once

    def starting(self, payload: Payload, state: Tensors) -> dict[str, Tensor]:
        """Return what training starts from: the received model, with the client's own buffers."""
        start, own = payload.group("model"), "buffer/"
        for name, tensor in state.items():
            if name.startswith(own):
                start[name.removeprefix(own)] = tensor
        return start

    def kept(self, model: SplitModel) -> dict[str, str]:
        """Return what a client remembers of its model: names in its state, names in the model."""
        if self.buffers != "local":
            return {}
        return {f"buffer/{name}": name for name in model.buffer_names()}

    def at_start(self, payload: Payload, client: Client, context: LossContext) -> Any:
        """Make what the functions below need, once a task: tensors, in dicts or tuples, or numbers.

        The client's model holds what was received, and has to hold it afterwards.
        """
        return None

    def local_loss(
        self, model: SplitModel, x: Tensor, y: Tensor, context: LossContext, aux: Any
    ) -> Tensor:
        """Return the loss of one batch, from these arguments alone."""
        return self.loss(model.output(x, self.loss.reads_features), y, context)

    def adjust(self, gradients: Tensors, weights: Tensors, aux: Any) -> None:
        """Change gradients in place, number by number; there may be a dimension of clients."""

    def sent(self, payload: Payload, model: SplitModel, names: Iterable[str]) -> dict[str, str]:
        """Return what is sent of the trained model: names in the answer, names in the model."""
        return {f"model/{name}": name for name in names}

    def extras(self, client: Client, steps: int, tensors: Tensors, aux: Any) -> Payload:
        """Return what the client sends beside the trained model, whose tensors are given."""
        return Payload({}, {"samples": len(client.data), "steps": steps})
