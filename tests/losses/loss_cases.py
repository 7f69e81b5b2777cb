"""One call of a loss on written numbers: its value and the gradient of the logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedtail.losses import LocalLoss, LossContext
from fedtail.models import Output

Rows = Sequence[Sequence[float]]


def context(
    prior: Sequence[float],
    counts: Sequence[float] | None = None,
    round: int = 1,
    rounds: int = 1,
) -> LossContext:
    """Return a context; the client's own counts are the prior, unless said otherwise."""
    own = torch.tensor(prior if counts is None else counts, dtype=torch.float32)
    return LossContext(own, torch.tensor(prior, dtype=torch.float32), round, rounds)


def evaluated(
    loss: LocalLoss, z: Rows, y: Sequence[int], known: LossContext
) -> tuple[float, Tensor]:
    """Return the loss of these logits, and its gradient."""
    logits = torch.tensor(z, requires_grad=True)
    value = loss(Output(logits, torch.zeros(len(y), 1)), torch.tensor(y), known)
    (gradient,) = torch.autograd.grad(value, logits)
    return float(value.detach()), gradient


def drawn(*shape: int) -> Tensor:
    """Return normal numbers, the same each time."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))
