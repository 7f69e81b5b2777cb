"""FedLoGe.

Xiao, Chen, Liu, Feng, Wu, Liu, Zhou, Yang, Liu, "FedLoGe: Joint Local and Generic Federated
Learning under Long-tailed Data", ICLR 2024.

The body learns under a classifier that is fixed and the same for everybody: sparse rows, short and
far apart (SSE-C). Two heads learn beside it on features that are held constant: an auxiliary one,
which is averaged, and one of each client's own. What is tested is the body with the auxiliary head
whose rows were brought to one length. A client's own model lengthens these rows by those of its own
head, and leaves out the classes that it does not hold.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from fedtail.losses import LossContext
from fedtail.methods.base import Method
from fedtail.methods.fedavg import ModelState
from fedtail.methods.personal_heads import PERSONAL, PersonalHeads
from fedtail.models.experts import with_new_heads
from fedtail.models.fixed_heads import FixedHead, sparse_simplex
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Client, Tensors
from fedtail.training.class_gradients import trained_head
from fedtail.training.classifier import named
from fedtail.training.federated_features import Head

AUXILIARY = "auxiliary"
OFF = -1e4
"""The logit of a class that a client does not hold, in its own model."""


@Method.register("fedloge")
class FedLoGe(PersonalHeads[ModelState]):
    """A fixed sparse classifier for the body; heads on its features, for all and for each."""

    family: ClassVar[str] = "fixed classifier"
    paper: ClassVar[str] = (
        "Xiao et al., FedLoGe: Joint Local and Generic Federated Learning under Long-tailed Data, "
        "ICLR 2024"
    )
    needs: ClassVar[tuple[str, ...]] = (
        "a linear classifier with as many features as classes",
        "a head kept by each client",
    )
    traffic: ClassVar[str] = "none: the auxiliary head travels in the classifier's place"

    sparsity: float = Field(0.6, ge=0, lt=1, description="share of zeros in a fixed row")
    norm: float = Field(
        1.0, gt=0, description="length of a fixed row: the scale of the logits (paper: 0.1)"
    )
    spread: bool = Field(True, description="widen the angles between the fixed rows at the start")
    realigned: float = Field(
        1.7, ge=0, description="length of the tested head's rows; 0 leaves them as they are"
    )

    def build_model(self, base: SplitModel) -> SplitModel:
        """Fix the classifier, and add the two heads."""
        head = trained_head(base.classifier)
        rows = sparse_simplex(head.out_features, head.in_features, self.sparsity, self.spread)

        def fixed(head: nn.Module, name: str) -> nn.Module:
            return FixedHead(self.norm * rows)

        model = with_new_heads(base, fixed).with_head(AUXILIARY, copy.deepcopy(head))
        return self.with_personal_head(model, head)

    def pattern(self, model: SplitModel) -> str:
        """Return the name of the auxiliary head."""
        return f"{AUXILIARY}."

    def local_loss(
        self, model: SplitModel, x: Tensor, y: Tensor, context: LossContext, aux: Any
    ) -> Tensor:
        """Return the losses of all heads; only that of the fixed one reaches the body."""
        output = model.output(x)
        h = output.features.detach()
        heads = [head(h) for head in model.extra_heads.values()]
        own = [functional.cross_entropy(z, y) for z in heads]
        return torch.stack([self.loss(output, y, context), *own]).sum()

    def tested(self, tensors: Tensors, model: SplitModel) -> dict[str, Tensor]:
        """Return the body with the auxiliary head, its rows of one length."""
        body, head = parts(tensors)
        return {**body, **named(realigned(head, self.realigned), model)}

    def own(self, start: Tensors, head: Head, client: Client) -> dict[str, Tensor]:
        """Return the body with (1 + ‖φ_c‖) ψ_c in the rows of the client's classes."""
        body, auxiliary = parts(start)
        stretched = auxiliary.weight * (1 + head.weight.norm(dim=1, keepdim=True))
        held, bias = client.counts > 0, auxiliary.bias
        if bias is None:  # features behind a ReLU are not negative
            weight = torch.where(held[:, None], stretched, OFF)
        else:
            weight = torch.where(held[:, None], stretched, 0.0)
            bias = torch.where(held, bias, OFF)
        return {**body, **named(Head(weight, bias), client.model)}


def parts(tensors: Tensors) -> tuple[dict[str, Tensor], Head]:
    """Return the body, and the auxiliary head."""
    begin = f"{AUXILIARY}."
    body = {n: t for n, t in tensors.items() if not n.startswith((begin, f"{PERSONAL}."))}
    return body, Head(tensors[f"{begin}weight"], tensors.get(f"{begin}bias"))


def realigned(head: Head, norm: float) -> Head:
    """Return the head with rows of this length, and its bias; 0 leaves it as it is."""
    if not norm:
        return head
    return Head(norm * functional.normalize(head.weight, dim=1), head.bias)
