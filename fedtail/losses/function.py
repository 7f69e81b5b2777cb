"""A loss of the user's own: any function of logits and labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from pydantic import Field, SkipValidation
from torch import Tensor

from fedtail.errors import FedtailError
from fedtail.losses.base import LocalLoss, LossContext
from fedtail.model_file import place_of
from fedtail.models.split_model import Output


class FunctionLoss(LocalLoss):
    """A Python function f(logits, labels) that returns the mean over the batch.

    ``FedAvg(loss=f)`` is short for it. A description holds the function's name only: such a run is
    resumed from Python.
    """

    reads_features: ClassVar[bool] = False

    name: ClassVar[str] = "function"  # not registered: no description can make one

    function: SkipValidation[Callable[[Tensor, Tensor], Tensor]] = Field(
        description="of logits and labels"
    )

    def __call__(self, output: Output, y: Tensor, context: LossContext) -> Tensor:
        """Return the loss."""
        loss = self.function(output.logits, y)
        if not isinstance(loss, Tensor) or loss.ndim:
            got = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else loss
            raise FedtailError(
                f"the loss '{place_of(self.function)}' returns {got}, not one number"
            )
        return loss

    def describe(self) -> dict[str, Any]:
        """Return the name of the function."""
        return {"name": self.name, "function": place_of(self.function)}
