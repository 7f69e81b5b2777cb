"""What a local loss is given, and what it gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedtail.config import Component, Registry
from fedtail.errors import FedtailError
from fedtail.models.split_model import Output


@dataclass(frozen=True)
class LossContext:
    """What a loss may know beside the batch.

    Attributes
    ----------
    counts
        The client's own class counts n_c, float; zero for absent classes.
    prior
        Class counts π_c up to a factor, from the method's `ClassPrior`: local, global or estimated.
    round, rounds
        Where training stands, for losses that change over time.
    weights
        Class weights that the server told, if the method has any.
    """

    counts: Tensor
    prior: Tensor
    round: int
    rounds: int
    weights: Tensor | None = None


class LocalLoss(Component):
    """A loss of one batch: a mean over its samples.

    Attributes
    ----------
    reads_features
        Whether it looks at the features; if not, it may be given none. A class with a `__call__` of
        its own that does not say is taken to look.
    """

    registry: ClassVar[Registry[LocalLoss]] = Registry("loss")
    reads_features: ClassVar[bool] = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__call__" in vars(cls) and "reads_features" not in vars(cls):
            cls.reads_features = True

    @classmethod
    def adopted(cls, value: Any) -> Any:
        """Return a function of logits and labels as a loss."""
        if not callable(value) or isinstance(value, LocalLoss):
            return value
        from fedtail.losses.function import FunctionLoss

        return FunctionLoss(function=value)

    def __call__(self, output: Output, y: Tensor, context: LossContext) -> Tensor:
        """Return the loss."""
        raise FedtailError(f"loss '{self.name}' is abstract")

    def adjusted(self, z: Tensor, context: LossContext) -> Tensor:
        """Return the logits that its softmax is of: with margins or a prior, if it has any."""
        return z


def can_be_read(y: Tensor) -> bool:
    """Whether a loss may look at these numbers: not those of many clients at once, under `vmap`.

    What it would refuse gives NaN or infinity then, and such a client is trained again, alone.
    """
    return not torch._C._functorch.is_batchedtensor(y)
