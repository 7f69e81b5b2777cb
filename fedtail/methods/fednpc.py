"""FedNPC.

Gao, Zhao, Yang, Guo, "FedNPC: Stochastic Noise-driven Post-hoc Classifier Calibration Method for
Federated Long-tailed Learning", CVPR Findings 2026.

Training is FedAvg's. After it the server, without data, trains the classifier on features that are
noise, N(0, I), with labels that are drawn evenly: what noise says of a class is the classifier's
own bias, and it is trained away. The longest rows and the largest biases go first; too many steps
take everything. When to stop is said by the rows alone: where their lengths, less what all
have in common, are most alike, as long as the classifier still points where it did.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from fedtail.methods.base import Method
from fedtail.methods.fedavg import FedAvg, ModelState
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Exchange, Server
from fedtail.training.class_gradients import trained_head
from fedtail.training.classifier import named, unnamed
from fedtail.training.federated_features import Head


class NoiseStep(NamedTuple):
    """A classifier after so many steps: its row lengths' spread, its cosine with the first one."""

    steps: int
    head: Head
    spread: float
    cosine: float


@Method.register("fednpc")
class FedNPC(FedAvg[ModelState]):
    """FedAvg, then train the classifier on noise until its rows are of one length."""

    family: ClassVar[str] = "classifier after training"
    paper: ClassVar[str] = (
        "Gao et al., FedNPC: Stochastic Noise-driven Post-hoc Classifier Calibration Method for "
        "Federated Long-tailed Learning, CVPR Findings 2026"
    )
    needs: ClassVar[tuple[str, ...]] = ("a linear classifier",)

    noise: int = Field(10_000, ge=1, description="M: features that are drawn")
    steps: int = Field(27, ge=0, description="steps of SGD, at most; 0 is FedAvg")
    noise_lr: float = Field(0.1, gt=0, description="rate of these steps")
    noise_momentum: float = Field(0.9, ge=0, lt=1, description="momentum of these steps")
    stop: Literal["norms", "steps"] = Field(
        "norms",
        description="take the step at which row lengths are most alike, or the last one",
    )
    keep: float = Field(
        0.9, ge=-1, le=1, description="with norms: least cosine with the trained classifier"
    )

    def build_model(self, base: SplitModel) -> SplitModel:
        """Refuse a classifier that is not linear, or frozen."""
        trained_head(base.classifier)
        return base

    def finalize(self, s: ModelState, server: Server) -> Exchange[ModelState]:
        """Calibrate the classifier on the copy that is tested; nobody is asked."""
        yield from ()
        if not self.steps:
            return s
        draw = server.generator("noise")
        h = torch.randn(self.noise, server.model.feature_dim, generator=draw)
        y = torch.randint(server.num_classes, (self.noise,), generator=draw)
        path = self.path(unnamed(s.model, server.model).to(server.device), h.to(server.device), y)
        chosen = path[-1]
        if self.stop == "norms":
            # Of spreads that are alike up to rounding the first: two rows always have one length.
            kept = (p for p in path if p.cosine >= self.keep)
            chosen = min(kept, key=lambda p: round(p.spread, 9))
        server.log("noise_steps", chosen.steps)
        server.log("noise_cosine", chosen.cosine)
        head = named(chosen.head.to(torch.device("cpu")), server.model)
        return replace(s, model={**s.model, **head})

    def path(self, head: Head, h: Tensor, y: Tensor) -> list[NoiseStep]:
        """Return the classifier before the first step and after each, of the whole batch."""
        weight, bias = head
        moved, shifted = torch.zeros_like(weight), weight.new_zeros(len(weight))
        own = torch.arange(len(h), device=h.device), y.to(h.device)
        found = [noise_step(0, head, head)]
        for step in range(1, self.steps + 1):
            z = h @ weight.T if bias is None else h @ weight.T + bias
            error = z.softmax(dim=1)
            error[own] -= 1
            error /= len(h)
            moved = self.noise_momentum * moved + error.T @ h
            weight = weight - self.noise_lr * moved
            if bias is not None:
                shifted = self.noise_momentum * shifted + error.sum(dim=0)
                bias = bias - self.noise_lr * shifted
            found.append(noise_step(step, Head(weight, bias), head))
        return found


def noise_step(steps: int, head: Head, first: Head) -> NoiseStep:
    """Return what is known of a classifier, beside the first one."""
    now, start = centred_rows(head), centred_rows(first)
    lengths = now.norm(dim=1).clamp(min=1e-12).log()
    cosine = torch.cosine_similarity(now.flatten(), start.flatten(), dim=0)
    # The first one points where it does, whatever rounding makes of it; so does one of zeros.
    same = steps == 0 or not bool(start.any())
    return NoiseStep(steps, head, float(lengths.std(correction=0)), 1.0 if same else float(cosine))


def centred_rows(head: Head) -> Tensor:
    """Return rows with their biases, less the mean row: what a softmax makes use of."""
    bias = head.weight.new_zeros(len(head.weight)) if head.bias is None else head.bias
    # In double precision: what rows have in common may be much longer than what is left.
    rows = torch.cat([head.weight, bias[:, None]], dim=1).cpu().double()
    return rows - rows.mean(dim=0)
