"""FedAlign.

Mendieta, Yang, Wang, Lee, Ding, Chen, "Local Learning Matters: Rethinking Data Heterogeneity in
Federated Learning", CVPR 2022.

FedAvg whose clients also make the last block of the network behave alike at full width and with a
part ω of its channels: the local loss has the term μ (L / D) D, where D is the mean squared
difference of the two blocks' Lipschitz constants, estimated from the largest singular values of
their transmitting matrices. The ratio L / D, taken as a number, makes the term as large as μ times
the loss L. Only the narrow block learns from D.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from fedtail.errors import FedtailError
from fedtail.forms import Form, Number
from fedtail.methods.base import Method
from fedtail.methods.fedavg import FedAvg, LocalRun, ModelState
from fedtail.models.slim import Slim, last_block, top_singular_value, transmitting_matrix
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Payload, Server
from fedtail.reduce import Reduced


@dataclass
class Alignment:
    """One client's share of a round.

    Attributes
    ----------
    slim
        The narrow block.
    gaps
        D, step by step.
    """

    slim: Slim
    gaps: list[Tensor] = field(default_factory=list)


@Method.register("fedalign")
class FedAlign(FedAvg[ModelState]):
    """FedAvg with a last block that is as smooth with few channels as with all."""

    family: ClassVar[str] = "drift"
    paper: ClassVar[str] = (
        "Mendieta et al., Local Learning Matters: Rethinking Data Heterogeneity in Federated "
        "Learning, CVPR 2022"
    )
    needs: ClassVar[tuple[str, ...]] = ("a last block of convolutions or linear layers",)

    mu: float = Field(0.45, ge=0, description="μ: strength of the term; 0 is FedAvg")
    width: float = Field(0.25, gt=0, le=1, description="ω: part of the channels of the slim block")
    block: str = Field(
        "", description="dotted name of the block; by default the last one before the classifier"
    )
    iterations: int = Field(10, ge=1, description="power iterations for a singular value")

    def build_model(self, base: SplitModel) -> SplitModel:
        """Leave the model as it is; one whose block cannot be slimmed or trained is refused."""
        block = self.chosen(base) if self.mu else None
        if block is not None and not any(p.requires_grad for p in block.parameters()):
            raise FedtailError(
                f"method '{self.name}' trains the block '{self.block or last_block(base)}' at two"
                " widths, and it is frozen: train it too, or name another one as method.block"
            )
        if block is not None:
            Slim(block, self.width)
        return base

    def chosen(self, model: SplitModel) -> nn.Module:
        """Return the block."""
        try:
            return model.module.get_submodule(self.block or last_block(model))
        except AttributeError:
            names = ", ".join(name for name, _ in model.module.named_children())
            raise FedtailError(
                f"method.block = '{self.block}' is no part of the model, which begins with: {names}"
            ) from None

    def aggregate(self, s: ModelState, found: Reduced, server: Server) -> ModelState:
        """Average as FedAvg does."""
        if self.mu:
            server.log("lipschitz_gap", found.mean("lipschitz_gap"))
        return super().aggregate(s, found, server)

    def train_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare the model, and how large D was."""
        whole = super().train_form(task, model, classes)
        return whole.numbers(lipschitz_gap=Number(low=0)) if self.mu else whole

    def prepare(self, run: LocalRun) -> Alignment | None:
        """Make the narrow block."""
        return Alignment(Slim(self.chosen(run.model), self.width)) if self.mu else None

    def batch_loss(self, run: LocalRun, x: Tensor, y: Tensor) -> Tensor:
        """Return L + μ (L / D) D."""
        if run.aux is None:
            return super().batch_loss(run, x, y)
        slim: Slim = run.aux.slim
        with watched(slim.block) as seen:
            loss = super().batch_loss(run, x, y)
        if not seen:
            raise FedtailError("the model ran without calling the block that fedalign slims")
        before, after = (t.to(loss.dtype) for t in seen[-1])  # a body may train in bfloat16
        few = before[:, : slim.channels(before.shape[1])]
        narrow = self.lipschitz(few, slim(before))
        gap = nn.functional.mse_loss(narrow, self.lipschitz(before, after))
        run.aux.gaps.append(gap.detach())
        # Blocks that agree already (D = 0, as with ω = 1) leave nothing to learn.
        ratio = torch.where(gap > 0, loss.detach() / gap.detach(), 0.0)
        return loss + self.mu * ratio * gap

    def lipschitz(self, before: Tensor, after: Tensor) -> Tensor:
        """Return the Lipschitz estimate of each sample, the top singular value of its matrix."""
        return top_singular_value(transmitting_matrix(before, after), self.iterations)

    def reply(self, run: LocalRun) -> Payload:
        """Send the model, and how large D was."""
        sent = super().reply(run)
        if run.aux is None:
            return sent
        gaps = run.aux.gaps
        mean = float(torch.stack(gaps).mean()) if gaps else 0.0
        return replace(sent, scalars={**sent.scalars, "lipschitz_gap": mean})


@contextmanager
def watched(block: nn.Module) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Collect what goes into a block and what comes out, as numbers without a gradient.

    They are copies: a later layer may work in place.
    """
    seen: list[tuple[Tensor, Tensor]] = []
    inputs: list[Tensor] = []

    def enter(layer: nn.Module, args: tuple[Any, ...]) -> None:
        inputs.append(args[0].detach().clone())

    def leave(layer: nn.Module, args: tuple[Any, ...], out: Tensor) -> None:
        seen.append((inputs[-1], out.detach().clone()))

    hooks = [block.register_forward_pre_hook(enter), block.register_forward_hook(leave)]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
