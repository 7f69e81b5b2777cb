"""Stochastic gradient descent with the bits of `torch.optim.SGD`, and none of its set-up.

A small model's step takes a tenth of a millisecond, and torch's optimiser, which is made anew for
every task, takes half as long again: profiler ranges, hooks, a wrapper around each call. So do
the checks before a gradient is computed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, MutableMapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

ENGINE: Any = torch.autograd.Variable._execution_engine
"""What computes gradients behind `torch.autograd.backward`."""


def differentiate(loss: Tensor) -> None:
    """Do what `torch.autograd.backward` does, whose checks take a third of a small step's time."""
    if not isinstance(loss, Tensor):
        raise TypeError(f"the loss of a batch is a {type(loss).__name__}: is a 'return' missing?")
    if loss.ndim and loss.numel() != 1:
        shape = tuple(loss.shape)
        raise TypeError(f"the loss of a batch is one number, not a tensor of shape {shape}")
    if loss.ndim or not loss.is_cpu:
        torch.autograd.backward(loss)
        return
    one = torch.ones_like(loss)
    ENGINE.run_backward(
        (loss,), (one,), False, False, (), allow_unreachable=True, accumulate_grad=True
    )


class LocalOptimizer(Protocol):
    """What local training uses of an optimiser: `SGD`, or any of torch's."""

    param_groups: list[dict[str, Any]]

    @property
    def state(self) -> MutableMapping[Any, Any]:
        """What it remembers of each parameter."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""

    def step(self) -> Any:
        """Move the parameters."""


class SGD:
    """w ← w − η v, where v ← μ v + (g + λ w); a parameter without a gradient stays as it is.

    Parameters
    ----------
    parameters
        What is trained.
    lr, momentum, nesterov, weight_decay
        η, μ, whether the step is (g + λ w) + μ v, and λ.

    Attributes
    ----------
    param_groups
        One group, as torch has it; a rate that is put there counts from the next step on.
    state
        With momentum, the ``momentum_buffer`` v of each parameter, from its first step on.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        self.param_groups: list[dict[str, Any]] = [
            {
                "params": list(parameters),
                "lr": lr,
                "momentum": momentum,
                "nesterov": nesterov,
                "weight_decay": weight_decay,
            }
        ]
        self.state: defaultdict[Tensor, dict[str, Any]] = defaultdict(dict)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients; they are never only set to zero."""
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = None

    def step(self) -> None:
        """Take one step along the gradients."""
        group = self.param_groups[0]
        momentum, decay = group["momentum"], group["weight_decay"]
        moved = [p for p in group["params"] if p.grad is not None]
        steps = [p.grad for p in moved]
        with torch.no_grad():
            if decay:
                steps = [g.add(p, alpha=decay) for p, g in zip(moved, steps, strict=True)]
            if momentum:
                ahead = group["nesterov"]
                pairs = zip(moved, steps, strict=True)
                steps = [self._remembered(p, g, momentum, ahead) for p, g in pairs]
            torch._foreach_add_(moved, steps, alpha=-group["lr"])

    def _remembered(self, parameter: Tensor, grad: Tensor, momentum: float, ahead: bool) -> Tensor:
        memory = self.state[parameter]
        buffer: Tensor | None = memory.get("momentum_buffer")
        if buffer is None:
            buffer = memory["momentum_buffer"] = grad.clone()
        else:
            buffer.mul_(momentum).add_(grad)
        return grad.add(buffer, alpha=momentum) if ahead else buffer
