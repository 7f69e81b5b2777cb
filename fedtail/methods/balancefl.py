"""BalanceFL.

Shuai, Shen, Jiang, Zhao, Yan, Xing, "BalanceFL: Addressing Class Imbalance in Long-Tail Federated
Learning", IPSN 2022.

The server is FedAvg's. Each client trains as if its data were balanced: the received model teaches
it the classes that it does not hold (knowledge inheritance), its batches are balanced over the
classes it does hold (Eq. 5, the sampler), the features of rare classes are spread by noise with the
pooled covariance of all its classes (Eq. 6 and 7), and its confidence is smoothed. Each of the four
is a switch; with all of them off this is FedAvg, bit by bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedtail.methods.base import Method
from fedtail.methods.fedavg import FedAvg, LocalRun, ModelState
from fedtail.models.split_model import Output, SplitModel
from fedtail.protocol import Client, Payload
from fedtail.training import BatchSampler, ClassBalanced, Shuffled, normalisable
from fedtail.training.teacher import TeacherMode, frozen_copy, taught

Domain = Literal["code", "paper"]
FEW_SAMPLES = 2
"""Up to so many samples for each feature, noise is mixed from the samples themselves."""


NOISE_AT_ONCE = 128
"""Vectors of noise that are made by one product: one by one would read R for each batch."""


@dataclass
class Noise:
    """A stream of vectors ε ~ N(0, RᵀR).

    Attributes
    ----------
    root
        R.
    generator
        What it is drawn from.
    """

    root: Tensor
    generator: torch.Generator

    def __post_init__(self) -> None:
        self._ready = self.root[:0]

    def take(self, count: int) -> Tensor:
        """Return the next vectors, (count, d)."""
        missing = count - len(self._ready)
        if missing > 0:
            # A client with few samples needs few.
            size = max(missing, min(NOISE_AT_ONCE, len(self.root)))
            draws = torch.randn(size, len(self.root), generator=self.generator)
            self._ready = torch.cat([self._ready, draws.to(self.root.device) @ self.root])
        taken, self._ready = self._ready[:count], self._ready[count:]
        return taken


@dataclass(frozen=True)
class Lesson:
    """What one task prepares.

    Attributes
    ----------
    teacher
        The received model, frozen, where knowledge is inherited.
    noise
        Of the pooled covariance Σ (Eq. 6), where features are augmented.
    p
        How likely a sample of each class is augmented (Eq. 7).
    generator
        The stream of who is augmented, and of the noise.
    """

    teacher: SplitModel | None
    noise: Noise | None
    p: Tensor
    generator: torch.Generator


@Method.register("balancefl")
class BalanceFL(FedAvg[ModelState]):
    """FedAvg with clients that make up for the classes they lack and the imbalance they have."""

    family: ClassVar[str] = "local re-balancing"
    paper: ClassVar[str] = (
        "Shuai et al., BalanceFL: Addressing Class Imbalance in Long-Tail Federated Learning, "
        "IPSN 2022"
    )

    sampler: BatchSampler = Field(
        ClassBalanced(), description="class-balanced with gamma (Eq. 5); shuffled switches it off"
    )
    inherit: bool = Field(True, description="learn absent classes from the received model")
    augment_features: bool = Field(True, description="spread the features of rare classes")
    smooth: bool = Field(True, description="reward spread over the active classes")
    domain: Domain = Field(
        "paper",
        description="paper: one softmax over all classes, of which the terms sum a part; code: "
        "separate ones over active and over absent classes",
    )
    absent_by: Literal["client", "batch"] = Field(
        "client", description="absent: not held by the client (paper), or not in the batch (code)"
    )
    temperature: float = Field(2.0, gt=0, description="T of knowledge inheritance")
    ki_weight: float = Field(1.0, ge=0, description="weight of knowledge inheritance")
    lambda1: float = Field(0.002, ge=0, description="weight of smoothing")
    smooth_over: Literal["sum", "mean"] = Field(
        "sum", description="smoothing summed over the batch (code) or averaged like the loss"
    )
    teacher_mode: TeacherMode = Field(
        "train", description="BatchNorm and dropout of the teacher: train is the authors' code"
    )
    persist_optimizer: bool = Field(
        False, description="clients keep momentum or Adam's moments between rounds (code)"
    )

    def prepare(self, run: LocalRun) -> Lesson | None:
        """Freeze the teacher; Σ and p once a task (Eq. 6, 7)."""
        if self.persist_optimizer:
            recall_optimizer(run)
        if not (self.inherit or self.augment_features or self.smooth):
            return None
        client, counts = run.client, run.context.counts
        teacher = (
            frozen_copy(run.model, self.teacher_mode)
            if self.inherit or self.augment_features
            else None
        )
        noise, generator = None, client.generator("features")
        if teacher is not None and self.augment_features and len(client.data):
            root = pooled_root(*self.features(teacher, client)).to(client.device)
            noise = Noise(root, generator)
        return Lesson(
            teacher=teacher if self.inherit else None,
            noise=noise,
            p=1 - counts / counts.max().clamp(min=1),
            generator=generator,
        )

    @torch.no_grad()
    def features(self, teacher: SplitModel, client: Client) -> tuple[Tensor, Tensor]:
        """Return the teacher's features of all local samples, and their labels."""
        once, labels = self.local.but(epochs=1, steps=None), client.data.labels
        norms, found, seen = teacher.batch_norms(), [], []
        generator = client.generator("covariance")
        for index in once.batches(Shuffled(), labels, generator, bool(norms)):
            with normalisable(norms, len(index)):
                found.append(teacher.features(client.data.batch(index)[0]).cpu())
            seen.append(labels[index])
        return torch.cat(found), torch.cat(seen)

    def batch_loss(self, run: LocalRun, x: Tensor, y: Tensor) -> Tensor:
        """KI + CE + λ1 Smooth (Eq. 10): CE of augmented features, the others of clean ones."""
        lesson: Lesson | None = run.aux
        if lesson is None:
            return super().batch_loss(run, x, y)
        output = run.model.output(x)
        held = (
            run.context.counts
            if self.absent_by == "client"
            else y.bincount(minlength=len(lesson.p))
        )
        active = held > 0
        spread = self.augmented(run.model, output, y, lesson)
        if self.inherit and self.domain == "code":
            spread = spread._replace(logits=spread.logits.masked_fill(~active, -torch.inf))
        loss = self.loss(spread, y, run.context)
        if lesson.teacher is not None and not bool(active.all()):
            received = taught(lesson.teacher, x)
            term = inheritance(output.logits, received, ~active, self.temperature, self.domain)
            loss = loss + self.ki_weight * term
        if self.smooth:
            term = negative_entropy(output.logits, active, self.domain)
            loss = loss + self.lambda1 * (term.sum() if self.smooth_over == "sum" else term.mean())
        return loss

    def augmented(self, model: SplitModel, output: Output, y: Tensor, lesson: Lesson) -> Output:
        """h̃ = h + ε, ε ~ N(0, Σ), for each sample with probability p_y; fresh noise each time."""
        if lesson.noise is None:
            return output
        lucky = torch.rand(len(y), generator=lesson.generator).to(y.device) < lesson.p[y]
        chosen = torch.nonzero(lucky)[:, 0]
        if not len(chosen):
            return output
        features = output.features.index_add(0, chosen, lesson.noise.take(len(chosen)))
        return Output(model.classifier(features), features)

    def reply(self, run: LocalRun) -> Payload:
        """Keep the optimiser's state if asked to, and send the model."""
        if self.persist_optimizer:
            remember_optimizer(run)
        return super().reply(run)


def log_share(z: Tensor, classes: Tensor, domain: Domain) -> Tensor:
    """Return log q of some classes: a softmax over them alone (code), or over all (paper)."""
    if domain == "code":
        return z[:, classes].log_softmax(dim=1)
    return z.log_softmax(dim=1)[:, classes]


def inheritance(
    z: Tensor, received: Tensor, absent: Tensor, temperature: float, domain: Domain
) -> Tensor:
    """Return KI = −Σ_{c absent} q̂'_c log q'_c, with q' and q̂' tempered; mean over the batch."""
    student = log_share(z / temperature, absent, domain)
    teacher = log_share(received / temperature, absent, domain)
    return -(teacher.exp() * student).sum(dim=1).mean()


def negative_entropy(z: Tensor, active: Tensor, domain: Domain) -> Tensor:
    """Return Smooth = Σ_{c active} q_c log q_c of each sample."""
    log_q = log_share(z, active, domain)
    return (log_q.exp() * log_q).sum(dim=1)


def pooled_root(features: Tensor, y: Tensor) -> Tensor:
    """Return R with RᵀR = Σ = Σ_c n_c Σ_c / Σ_c n_c (Eq. 6).

    Σ_c has the divisor n_c − 1 and is zero for a class of one sample. Σ itself is never formed:
    it is AᵀA for the centred, scaled features A, and so RᵀR for A = QR. That needs no inverse and
    no positive eigenvalues, so few samples and dead channels do no harm. With few samples R is A:
    to make it smaller would take longer than a whole epoch's noise.
    """
    counts = y.bincount().to(torch.float64)
    sums = torch.zeros(len(counts), features.shape[1], dtype=torch.float64)
    means = (sums.index_add_(0, y, features.double()) / counts[:, None].clamp(min=1)).to(
        features.dtype
    )
    weight = counts / (counts - 1).clamp(min=1) / len(y)
    root = (features - means[y]) * weight[y, None].sqrt().to(features.dtype)
    if len(root) > FEW_SAMPLES * root.shape[1]:
        root = torch.linalg.qr(root.double(), mode="r").R
    return root.to(torch.float32)


def recall_optimizer(run: LocalRun) -> None:
    """Give a new optimiser the state that the client's last one ended with."""
    for name, parameter in run.model.trainable().items():
        prefix = f"optimizer/{name}/"
        for key, kept in run.client.state.items():
            if key.startswith(prefix):
                # Copied: the optimiser changes its state in place. Adam counts steps on the CPU.
                new = kept.clone() if key.endswith("/step") else torch.zeros_like(parameter)
                run.optimizer.state[parameter][key.removeprefix(prefix)] = new.copy_(kept)


def remember_optimizer(run: LocalRun) -> None:
    """Put the optimiser's state into the client's."""
    for name, parameter in run.model.trainable().items():
        for key, value in run.optimizer.state[parameter].items():
            if isinstance(value, Tensor):
                run.client.state[f"optimizer/{name}/{key}"] = value.detach().to(
                    "cpu", copy=True, memory_format=torch.contiguous_format
                )
