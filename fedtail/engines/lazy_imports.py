"""What torch puts off until it is first used, done before a clock starts."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.nn import Parameter
from torch.nn.functional import conv2d, cross_entropy

from fedtail.methods.base import Method


def import_lazily_used(device: torch.device, method: Method[Any] | None = None) -> None:
    """Take one step of training on nothing, once a process.

    The first convolution sets up its kernels, and the first optimiser of torch imports a compiler,
    for a second; clients that train by plain SGD have no use for that. Without this the first
    method of a comparison would be charged with it. No random number is drawn.
    """
    local = getattr(method, "local", None)
    _take_step(device)
    if local is not None and local.optimizer != "sgd":
        _take_optimiser()


@cache
def _take_step(device: torch.device) -> None:
    weight = Parameter(torch.zeros(2, 1, 3, 3, device=device))
    x, y = torch.zeros(1, 1, 3, 3, device=device), torch.zeros(1, dtype=torch.int64, device=device)
    loss = cross_entropy(conv2d(x, weight).flatten(1), y)
    torch.autograd.backward(loss)


@cache
def _take_optimiser() -> None:
    torch.optim.AdamW([Parameter(torch.zeros(1))]).step()
