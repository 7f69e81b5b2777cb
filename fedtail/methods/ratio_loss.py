"""Ratio Loss.

Wang, Xu, Wang, Zhu, "Addressing Class Imbalance in Federated Learning", AAAI 2021.

The server holds a few labelled samples of every class. Each round it trains the global model on
those of one class alone, class after class, and looks at the change ΔW^(c) of the classifier's
weight. Entries where class c changes most, and no other class nearly as much, say how far c still
has to go: R_c is the size of its change there over the mean change of the others. Clients weigh the
loss of a sample of class c by α + β R_c.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedtail.data.federation import ServerData
from fedtail.losses import LocalLoss, LossContext, WeightedCrossEntropy
from fedtail.methods.base import Method
from fedtail.methods.fedavg import FedAvg, ModelState
from fedtail.models.heads import refuse_frozen
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Client, Payload, Server
from fedtail.reduce import Reduced
from fedtail.training.class_gradients import batch_gradients, linear_head
from fedtail.training.distillation import distil, held

NO_OTHER = 10.0
"""R of a class beside which no other changes anything (code)."""
LARGEST_RATIO = 5000.0
"""The largest R (code)."""
NEARLY = 0.8
"""Another class that changes by more than this share of the largest change is as good (code)."""


@dataclass(frozen=True)
class RatioState(ModelState):
    """What the server keeps.

    Attributes
    ----------
    weights
        α + β R_c of every class; nothing before the first round is over.
    """

    weights: Tensor | None = None


@Method.register("ratio-loss")
class RatioLoss(FedAvg[RatioState]):
    """Weighs each class by how far the model still moves when the server trains on it."""

    family: ClassVar[str] = "server data"
    paper: ClassVar[str] = (
        "Wang et al., Addressing Class Imbalance in Federated Learning, AAAI 2021"
    )
    needs: ClassVar[tuple[str, ...]] = ("a linear classifier", "labelled server data")
    traffic: ClassVar[str] = "down one number for each class"
    server_data: ClassVar[Literal["none", "labelled", "unlabelled"]] = "labelled"

    loss: LocalLoss = Field(WeightedCrossEntropy(), description="a loss that takes class weights")
    alpha: float = Field(1.0, ge=0, description="α: weight of every class")
    beta: float = Field(0.1, ge=0, description="β: weight of R; 0, with α = 1, is FedAvg")
    per_class: int = Field(32, ge=1, description="most server samples that are used of a class")
    estimate: Literal["training", "gradient"] = Field(
        "training",
        description="R from a pass of training for each class (paper), or from one gradient each",
    )

    def build_model(self, base: SplitModel) -> SplitModel:
        """Refuse a classifier that is not linear, or whose weight is frozen."""
        refuse_frozen(linear_head(base.classifier), ["weight"])
        return base

    # Server half

    def new_state(self, tensors: dict[str, Tensor]) -> RatioState:
        """Begin without weights."""
        return RatioState(tensors)

    def broadcast(self, s: RatioState, server: Server) -> Payload:
        """Send the class weights beside the model."""
        sent = super().broadcast(s, server)
        told = {} if s.weights is None else {"weights/classes": s.weights}
        return replace(sent, tensors={**sent.tensors, **told})

    def aggregate(self, s: RatioState, found: Reduced, server: Server) -> RatioState:
        """Average; and take R at the model that the clients received, for the next round (code)."""
        new = super().aggregate(s, found, server)
        r = torch.zeros(server.num_classes)
        if self.beta:
            server.model.load(s.model)
            r = self.ratios(server)
            server.log("ratio_least", float(r.min()))
            server.log("ratio_most", float(r.max()))
        weights = self.alpha + self.beta * r
        return replace(new, weights=weights if bool((weights != 1).any()) else None)

    def ratios(self, server: Server) -> Tensor:
        """Return R of every class at the resident model."""
        samples = server_samples_by_class(held(server), self.per_class)
        if self.estimate == "gradient":
            return self.gradient_ratios(samples, server)
        return change_ratios(self.changes(samples, server), server.num_classes)

    def changes(self, samples: Mapping[int, Tensor], server: Server) -> dict[int, Tensor]:
        """Return ΔW^(c): what a pass over the samples of class c changes, by clients' optimiser."""
        model, start, found = server.model, server.model.tensors(), {}
        weight = linear_head(model.classifier).weight
        before = weight.detach().cpu().clone()
        once = self.local.but(epochs=1.0, steps=None)
        for c, x in samples.items():
            model.load(start)
            # The divergence from one-hot targets is the cross-entropy.
            target = torch.zeros(len(x), server.num_classes, device=x.device)
            distil(server, x, target.index_fill_(1, torch.tensor([c], device=x.device), 1.0), once)
            found[c] = weight.detach().cpu() - before
        return found

    def gradient_ratios(self, samples: Mapping[int, Tensor], server: Server) -> Tensor:
        """R_c = |mean_j (C−1) g^c_cj / Σ_{p≠c} g^p_cj|, g^p the gradient of class p (CLIMB's)."""

        def batches() -> Iterator[tuple[Tensor, Tensor]]:
            for c, x in samples.items():
                yield x, torch.full((len(x),), c, device=x.device)

        model, classes = server.model, torch.tensor(sorted(samples))
        head = model.classifier
        _, g, _ = batch_gradients(model, head, batches(), classes, server.num_classes)
        r = torch.full((server.num_classes,), NO_OTHER)
        for row, c in enumerate(classes.tolist()):
            own = g[row, c]
            others = g[torch.arange(len(classes)) != row, c].sum(dim=0)
            known = others != 0
            if bool(known.any()):
                r[c] = ((len(classes) - 1) * own[known] / others[known]).mean().abs()
        return r.clamp(max=LARGEST_RATIO)

    # Client half

    def context(self, payload: Payload, client: Client) -> LossContext:
        """Tell the loss the weights."""
        weights = payload.tensors.get("weights/classes")
        told = None if weights is None else weights.to(client.device)
        return replace(super().context(payload, client), weights=told)


def server_samples_by_class(data: ServerData, most: int) -> dict[int, Tensor]:
    """Return the first samples of each class that the server holds."""
    return {int(c): data.x[data.y == c][:most] for c in torch.unique(data.y)}


def change_ratios(changes: Mapping[int, Tensor], num_classes: int) -> Tensor:
    """R_c = |Σ Δ^(c)| / |Σ mean_{p≠c} Δ^(p)| over the entries in which class c stands out.

    In an entry the class of the largest change stands out, unless another one changes by more than
    0.8 of it in size. Where the others do not change, or nothing stands out, R is 10.
    """
    classes = sorted(changes)
    delta = torch.stack([changes[c] for c in classes]).double()
    largest, who = delta.max(dim=0)
    rivals = torch.where(largest == 0, delta == 0, delta.abs() > NEARLY * largest.abs())
    alone = rivals.sum(dim=0) < 2
    r = torch.full((num_classes,), NO_OTHER, dtype=torch.float64)
    for row, c in enumerate(classes):
        mine = alone & (who == row)
        # Of the entries first: a copy of all that the others change would be made for each class.
        others = delta[:, mine][torch.arange(len(classes)) != row].sum() / max(1, len(classes) - 1)
        if others != 0:
            r[c] = delta[row][mine].sum().abs() / others.abs()
    return r.clamp(max=LARGEST_RATIO).float()
