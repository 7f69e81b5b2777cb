"""What torch puts off until it is first used, done before a clock starts."""

from __future__ import annotations

from functools import cache

import torch
from torch.nn import Parameter
from torch.nn.functional import conv2d, cross_entropy


@cache
def import_lazily_used(device: torch.device) -> None:
    """Take one step of training on nothing, once a process.

    The first optimiser imports a compiler, the first convolution sets up its kernels. Without this
    the first method of a comparison would be charged with it. No random number is drawn.
    """
    weight = Parameter(torch.zeros(2, 1, 3, 3, device=device))
    x, y = torch.zeros(1, 1, 3, 3, device=device), torch.zeros(1, dtype=torch.int64, device=device)
    loss = cross_entropy(conv2d(x, weight).flatten(1), y)
    torch.autograd.backward(loss)
    torch.optim.SGD([weight], lr=0.1, momentum=0.9).step()
