"""How a client trains: optimiser, how long, in which batches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count, islice
from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from fedtail.config import Config
from fedtail.errors import FedtailError
from fedtail.training.samplers import BatchSampler
from fedtail.training.schedule import Constant, Schedule
from fedtail.training.sgd import SGD, LocalOptimizer


class LocalTraining(Config):
    """Optimiser and length of local training. A new optimiser is made for every task."""

    optimizer: Literal["sgd", "adam", "adamw"] = Field("sgd", description="which torch optimiser")
    lr: float = Field(0.05, gt=0, description="learning rate")
    momentum: float = Field(
        0.0, ge=0, lt=1, description="of sgd; the buffer starts anew each round"
    )
    nesterov: bool = Field(False, description="Nesterov's form of momentum")
    weight_decay: float = Field(0.0, ge=0, description="L2 decay of the weights")
    epochs: float = Field(1.0, gt=0, description="passes over the local data; may be a fraction")
    steps: int | None = Field(None, ge=1, description="number of batches, instead of epochs")
    batch_size: int = Field(32, ge=1, description="samples in a batch")
    clip: float | None = Field(None, gt=0, description="largest global gradient norm")
    schedule: Schedule = Field(Constant(), description="learning rate over rounds")

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.nesterov and not self.momentum:
            raise FedtailError("nesterov needs momentum above 0")
        if self.momentum and self.optimizer != "sgd":
            raise FedtailError(f"momentum is for sgd; {self.optimizer} has its own")
        return self

    def rate(self, round: int, rounds: int) -> float:
        """Return the learning rate of one round."""
        return self.lr * self.schedule.factor(round, rounds)

    def make_optimizer(
        self, parameters: Iterable[nn.Parameter], round: int, rounds: int
    ) -> LocalOptimizer:
        """Return a new optimiser for one task."""
        rate = self.rate(round, rounds)
        if self.optimizer == "sgd":
            return SGD(parameters, rate, self.momentum, self.nesterov, self.weight_decay)
        kind = torch.optim.Adam if self.optimizer == "adam" else torch.optim.AdamW
        return kind(parameters, lr=rate, weight_decay=self.weight_decay)

    def batches(
        self, sampler: BatchSampler, labels: Tensor, generator: torch.Generator, pairs: bool
    ) -> Iterator[Tensor]:
        """Yield positions of local samples, batch by batch, for the whole task.

        With `pairs`, a last batch of one sample joins the batch before it (see `normalisable`).
        """
        every = (
            batch
            for order in self.passes(sampler, labels, generator)
            for batch in torch.split(order, batch_sizes(len(order), self.batch_size, pairs))
        )
        return islice(every, self.steps)

    def passes(
        self, sampler: BatchSampler, labels: Tensor, generator: torch.Generator
    ) -> Iterator[Tensor]:
        """Yield positions of local samples, pass by pass; with `steps` there is no last one."""
        epochs = count() if self.steps else range(math.ceil(self.epochs))
        for epoch in epochs if len(labels) else ():
            share = 1.0 if self.steps else min(1.0, self.epochs - epoch)
            order = sampler.order(labels, generator)
            # 1.1 - 1 is a little more than 0.1: that little is not another sample.
            yield order[: max(1, math.ceil(share * len(order) - 1e-6))]


def batch_sizes(samples: int, size: int, pairs: bool) -> list[int]:
    """Return how a pass is cut into batches: equal ones, and what is left.

    With `pairs`, a last batch of one sample joins the batch before it (see `normalisable`).
    """
    full, rest = divmod(samples, size)
    sizes = [size] * full + ([rest] if rest else [])
    if pairs and size > 1 and full and rest == 1:
        sizes[-2:] = [size + 1]
    return sizes


def normalisable(norms: Sequence[nn.Module], size: int) -> AbstractContextManager[None]:
    """Let BatchNorm use its running statistics for a batch of one sample.

    One sample has no variance, so a client with a single sample (or a batch size of 1) would fail
    or be normalised to zero; the running statistics are the best there is then.
    """
    # Layers that are frozen are in evaluation mode already, and stay there.
    moving = [norm for norm in norms if norm.training] if size == 1 else []
    return _still(moving) if moving else AS_IT_IS


AS_IT_IS: AbstractContextManager[None] = nullcontext()


@contextmanager
def _still(moving: Sequence[nn.Module]) -> Iterator[None]:
    for norm in moving:
        norm.eval()
    try:
        yield
    finally:
        for norm in moving:
            norm.train()
