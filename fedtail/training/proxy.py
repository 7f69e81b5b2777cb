"""The proxy prior: the class distribution, read off one epoch of training.

Zeng et al., "Global Balanced Experts for Federated Long-Tailed Learning", ICCV 2023.

Before round 1 every client takes the gradient of plain cross-entropy at the initial model, or
trains it for an epoch. Its local proxy index Ω_i (Eq. 4) is how far row i of the classifier moves,
summed over the row: with features that are not negative it is positive exactly if the client has
more of class i than the model expects. The bias says so with any features, and is read where one
is trained. The server averages the positive parts to the global proxy Π (Eq. 5), which takes the
place of the class counts that nobody has to tell. `PrivateProxyPrior` is GBME-p's: the classifier's
change is clipped and gets Gaussian noise before anything leaves the client.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from fedtail.errors import FedtailError
from fedtail.forms import SAMPLES, Form, Like
from fedtail.models.heads import class_axis
from fedtail.models.split_model import SplitModel
from fedtail.privacy.gaussian import analytic_sigma, paper_sigma, spent_epsilon
from fedtail.privacy.noise import grid_step, hidden, on_grid, seeded_bytes
from fedtail.protocol import Client, Exchange, Payload, Server, Task, Tensors, grouped
from fedtail.training.local import LocalTraining, normalisable
from fedtail.training.priors import ClassPrior
from fedtail.training.samplers import Shuffled


@dataclass(frozen=True)
class Survey:
    """What the preliminary exchange found.

    Attributes
    ----------
    counts
        The estimated class counts: Π with a floor, scaled to the number of samples.
    omega
        Ω^k, one row a client, in the order of ``server.clients``; zeros for one that did not
        answer.
    gpi
        Π, as Eq. 5 has it.
    """

    counts: Tensor
    omega: Tensor
    gpi: Tensor


@ClassPrior.register("proxy")
class ProxyPrior(ClassPrior):
    """The class counts that the clients' first classifier updates betray (GBME's GPI)."""

    index: Literal["gradient", "epoch"] = Field(
        "gradient",
        description="what Ω is read off: the gradient of the mean local loss (Eq. 4), or the change"
        " of some local epochs (code), which grows with the client's size",
    )
    reads: Literal["bias", "rows"] = Field(
        "bias",
        description="what of the classifier: its bias, which tells a class with any features; or, "
        "and where no bias is trained, each row's sum (Eq. 4), which needs features above zero",
    )
    epochs: float = Field(1.0, gt=0, description="local passes of index = 'epoch'")
    upload: Literal["index", "layer"] = Field(
        "index",
        description="what a client sends: one number a class, or the classifier's change that the "
        "server makes them of",
    )
    normalise_per_client: bool = Field(
        False,
        description="scale the positive part of each client's index to sum 1 first, as the "
        "authors' code does",
    )
    floor: float = Field(
        0.05, gt=0, le=1, description="smallest share of a class, as a part of the mean share 1/C"
    )

    # Server half

    def check(self, model: SplitModel) -> None:
        """Refuse a classifier that has no rows, or does not train them."""
        mean_head(model, self.reads)

    @property
    def exchanges(self) -> int:
        """One."""
        return 1

    def setup(self, model: Tensors, server: Server) -> Exchange[Tensor | None]:
        """Return the estimated class counts, from what clients add to Π and nothing else."""
        self.announce(server)
        question = Payload(grouped("model", model), {"summed": True})
        found = yield [Task(client, "inform", question) for client in server.clients]
        # Eq. 5 is a mean by samples; if nobody has any, nothing is known.
        gpi = found["gpi"].get("classes", torch.zeros(server.num_classes))
        return self.estimate(gpi, found.total("samples"))

    def announce(self, server: Server) -> None:
        """Say what the exchange will cost."""

    @property
    def noisy(self) -> bool:
        """Whether what clients send carries noise, for which there is a guarantee."""
        return False

    def survey(self, model: Tensors, server: Server) -> Exchange[Survey]:
        """Hold the preliminary exchange with every client, and keep each one's index."""
        self.announce(server)
        question = Payload(grouped("model", model))
        found = yield [Task(client, "inform", question) for client in server.clients]
        omega = torch.zeros(len(server.clients), server.num_classes)
        samples = torch.zeros(len(server.clients))
        row = {client: k for k, client in enumerate(server.clients)}
        for update in found.each:
            sent = update.payload.tensors
            k = row[update.client]
            omega[k] = sent["lpi/classes"] if self.upload == "index" else lpi(sent["layer/weight"])
            samples[k] = float(update.payload.scalars["samples"])
        gpi = self.gpi(omega, samples)
        return Survey(self.estimate(gpi, float(samples.sum())), omega, gpi)

    def gpi(self, omega: Tensor, samples: Tensor) -> Tensor:
        """Π_i = Σ_k (n_k / n) max(Ω_i^k, 0) (Eq. 5)."""
        return mean_index(self.positive(omega), samples)

    def positive(self, omega: Tensor) -> Tensor:
        """Return max(Ω^k, 0), one row a client, in float64."""
        positive = omega.clamp(min=0).double()
        if self.normalise_per_client:
            positive = functional.normalize(positive, p=1.0, dim=1, eps=1e-300)
        return positive

    def estimate(self, gpi: Tensor, samples: float) -> Tensor:
        """Return counts ∝ max(Π, floor · ΣΠ / C), n in all; equal ones if Π is zero."""
        total = gpi.sum()
        shares = gpi / total if float(total) > 0 else torch.ones_like(gpi)
        floored = shares.clamp(min=self.floor / len(gpi))
        return floored * (max(samples, 1.0) / floored.sum())

    # Client half

    def report(self, payload: Payload, client: Client, local: LocalTraining) -> Payload:
        """Train, and tell by how much the classifier moved."""
        client.model.load(payload.group("model"))
        change = self.release(self.change(client, local), client)
        facts = {"samples": len(client.data)}
        if "summed" in payload.scalars:
            own = self.positive(lpi(change)[None])[0]
            return Payload({"gpi/classes": own.float()}, facts)
        sent = {"lpi/classes": lpi(change)} if self.upload == "index" else {"layer/weight": change}
        return Payload(sent, facts)

    def change(self, client: Client, local: LocalTraining) -> Tensor:
        """Return −∇w of the classifier at the received model, or by how much training moved it."""
        if self.index == "gradient":
            return -mean_gradient(client, local.but(epochs=1.0, steps=None), self.reads)
        before = mean_head(client.model, self.reads)
        # Decay would move every row, whatever the labels are.
        warm_up(client, local.but(epochs=self.epochs, steps=None, weight_decay=0.0))
        return mean_head(client.model, self.reads) - before

    def form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare one number a class, or the classifier's change."""
        facts = Form().numbers(samples=SAMPLES)
        if "summed" in task.scalars:
            return facts.group("gpi", {"classes": Like((classes,), low=0)})
        facts = facts.singly("its prior reads each client's own index", self.noisy)
        if self.upload == "index":
            return facts.group("lpi", {"classes": Like((classes,))})
        return facts.group("layer", {"weight": Like(tuple(mean_head(model, self.reads).shape))})

    def release(self, change: Tensor, client: Client) -> Tensor:
        """Return what may be known of the classifier's change (classes, features)."""
        return change

    def counts(self, told: Tensor | None, client: Client) -> Tensor:
        """Return what the server told."""
        return super().counts(None, client) if told is None else told


@ClassPrior.register("private_proxy")
class PrivateProxyPrior(ProxyPrior):
    """The proxy prior from classifier updates with Gaussian noise, released once (GBME-p)."""

    upload: Literal["index", "layer"] = Field(
        "layer",
        description="what a client sends: the noisy change of what is read, as in the paper, or its"
        " sums over rows, which carry the same noise in fewer bytes; of a bias both are the same",
    )
    epsilon: float = Field(
        10.0, gt=0, allow_inf_nan=True, description="ε of the release; inf adds no noise"
    )
    delta: float = Field(0.03, gt=0, lt=1, description="δ of the release")
    clip: float = Field(1.0, gt=0, description="Δ: largest L2 norm of what is released")
    bound: Literal["normalise", "clip"] = Field(
        "normalise",
        description="scale every change to norm Δ, so that Δ needs no tuning; or only longer ones",
    )
    mechanism: Literal["analytic", "paper"] = Field(
        "analytic",
        description="σ by the analytic Gaussian mechanism, or by c·Δ/ε, proved for ε < 1 only",
    )
    neighbours: Literal["absent", "replaced"] = Field(
        "absent",
        description="what ε tells apart: a client's data and none (sensitivity Δ), or any other "
        "data (2Δ)",
    )

    simulated: bool = Field(
        True,
        description="noise from the run's seed, so that it can be repeated and protects nobody; "
        "false draws it from the system's randomness",
    )

    @property
    def sensitivity(self) -> float:
        """How far the clipped change can lie from its neighbour's."""
        return self.clip * (2 if self.neighbours == "replaced" else 1)

    @property
    def sigma(self) -> float:
        """The standard deviation of the noise in each number."""
        rule = analytic_sigma if self.mechanism == "analytic" else paper_sigma
        return rule(self.epsilon, self.delta, self.sensitivity)

    @property
    def spent(self) -> float:
        """The ε that the noise is worth at δ, whatever it was asked to be."""
        if self.mechanism == "analytic":
            return self.epsilon
        return spent_epsilon(self.sigma, self.sensitivity, self.delta)

    @property
    def noisy(self) -> bool:
        """Whether there is noise: not for ε = ∞."""
        return math.isfinite(self.epsilon)

    def announce(self, server: Server) -> None:
        """Log the budget that the one exchange spends, which is all that is ever spent."""
        if self.mechanism == "paper" and 1 <= self.epsilon < math.inf:
            warnings.warn(
                f"σ = c·Δ/ε is proved for ε < 1, not for epsilon = {self.epsilon:g}: at δ ="
                f" {self.delta:g} this noise is worth ε = {self.spent:.4g}; the analytic mechanism"
                " is exact for every ε",
                stacklevel=2,
            )
        server.log("epsilon", self.spent)
        server.log("delta", self.delta)
        server.log("sigma", self.sigma)
        server.log("simulated", self.simulated)

    def release(self, change: Tensor, client: Client) -> Tensor:
        """Bound the norm by Δ, then add noise of σ to every number; neither of it for ε = ∞."""
        if math.isinf(self.epsilon):
            return change
        norm = max(float(change.double().norm()), 1e-12)
        scaled = change * (self.clip / norm) if self.bound == "normalise" else change
        source = seeded_bytes(client.seed, "private proxy", client.round, client.id)
        step = grid_step(self.clip)
        short = on_grid(scaled.flatten(), self.clip, step).reshape(change.shape) * step
        drawn = source if self.simulated else os.urandom
        return hidden(short, self.sigma, self.clip, drawn).float()


def lpi(change: Tensor) -> Tensor:
    """Ω_i = Σ_j Δw_ij = −Σ_j ∇w_ij, the rate times the gradients of all steps (Eq. 4)."""
    return change.sum(dim=1)


def mean_index(positive: Tensor, samples: Tensor) -> Tensor:
    """Π_i = Σ_k (n_k / n) of the positive indices, one row a client (Eq. 5)."""
    weights = samples.double() / samples.double().sum().clamp(min=1)
    return (weights @ positive).float()


def mean_head(model: SplitModel, reads: str = "rows", gradient: bool = False) -> Tensor:
    """Return the mean of the experts' classifier weights, (classes, features), as a copy.

    Or that of their biases, (classes, 1), if all have one and they are trained; or of the
    gradients, which are zero of an expert that is not trained, and without samples.
    """
    known = [getattr(head, "bias", None) for head in model.heads]
    biases = [bias for bias in known if isinstance(bias, Tensor)]
    if reads == "bias" and len(biases) == len(known) and any(b.requires_grad for b in biases):
        found = [data_or_gradient(bias, gradient)[:, None] for bias in biases]
    else:
        weights = [weight_of(*each) for each in zip(model.head_names, model.heads, strict=True)]
        if not any(weight.requires_grad for weight in weights):
            raise FedtailError(
                "the proxy prior reads how training moves the classifier's weight, and that of"
                f" '{model.head_names[0]}' is frozen: take another prior, or train it"
            )
        found = [data_or_gradient(weight, gradient) for weight in weights]
        axes = map(class_axis, model.heads)
        found = [rows if axis == 0 else rows.T for rows, axis in zip(found, axes, strict=True)]
    return torch.stack(found).mean(dim=0).to("cpu", torch.float32)


def weight_of(name: str, head: nn.Module) -> Tensor:
    """Return a classifier's weight, which is a matrix."""
    weight = getattr(head, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        raise FedtailError(f"the proxy prior reads the classifier's weight; '{name}' has none")
    return weight


def data_or_gradient(parameter: Tensor, gradient: bool) -> Tensor:
    """Return the parameter itself, or its gradient."""
    if not gradient:
        return parameter.detach()
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def mean_gradient(client: Client, local: LocalTraining, reads: str) -> Tensor:
    """Return the gradient of the mean local cross-entropy in the classifier, of all experts' mean.

    The model is in training mode, as it is when it is trained, and does not move.
    """
    model = client.model
    model.zero_grad(set_to_none=True)
    for x, y in passes(client, local):
        torch.autograd.backward(functional.cross_entropy(model(x), y, reduction="sum"))
    total = mean_head(model, reads, gradient=True)
    model.zero_grad(set_to_none=True)
    return total / max(len(client.data), 1)


def warm_up(client: Client, local: LocalTraining) -> None:
    """Train the resident model by plain cross-entropy, with the rate of the first round."""
    model = client.model
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = local.make_optimizer(trained, 1, client.rounds)
    for x, y in passes(client, local):
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(functional.cross_entropy(model(x), y))
        if local.clip is not None:
            nn.utils.clip_grad_norm_(trained, local.clip)
        optimizer.step()


def passes(client: Client, local: LocalTraining) -> Iterator[tuple[Tensor, Tensor]]:
    """Give the batches of the local passes, with the model in training mode."""
    model, norms = client.model, client.model.batch_norms()
    order, augmentation = client.generator("batches"), client.generator("augment")
    model.train()
    for index in local.batches(Shuffled(), client.data.labels, order, bool(norms)):
        x, y = client.data.batch(index, augmentation)
        with normalisable(norms, len(y)):
            yield x, y
