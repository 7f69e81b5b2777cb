"""In which order a client goes through its samples in one local epoch."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedtail.config import Component, Registry
from fedtail.errors import FedtailError


class BatchSampler(Component):
    """Positions of local samples for one epoch; batches are cut from them in order."""

    registry: ClassVar[Registry[BatchSampler]] = Registry("sampler")

    def order(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """Return positions into `labels`, as many as there are samples."""
        raise FedtailError(f"sampler '{self.name}' is abstract")


@BatchSampler.register("shuffled")
class Shuffled(BatchSampler):
    """Each sample once, in random order."""

    def order(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """Return a random permutation."""
        return torch.randperm(len(labels), generator=generator)


@BatchSampler.register("class_balanced")
class ClassBalanced(BatchSampler):
    """Class c with probability ∝ n_c^γ, then a sample of it, with replacement.

    γ = 0 makes the classes that the client holds equally likely, γ = 1 its samples.
    """

    gamma: float = Field(0.0, ge=0, le=1, description="0: classes equally likely; 1: samples are")

    def order(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """Return as many draws as there are samples."""
        counts = torch.bincount(labels).to(torch.float64)
        weight = counts[labels] ** (self.gamma - 1)
        return torch.multinomial(weight, len(labels), replacement=True, generator=generator)
