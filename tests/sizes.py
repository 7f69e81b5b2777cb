"""How large the tensors are that a computation makes: what must not grow with C² is told by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Made(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the numbers of every tensor that an operation returns.

    Attributes
    ----------
    largest, total
        Of one tensor at most, and of all of them together.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.largest = self.total = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Do the operation, and count."""
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self.largest = max(self.largest, tensor.numel())
                self.total += tensor.numel()
        return out


def made(compute: Callable[[], object]) -> Made:
    """Return how many numbers a computation makes."""
    counted = Made()
    with torch.inference_mode(False), counted:
        compute()
    return counted
