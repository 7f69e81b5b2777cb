"""FedRoD.

Chen, Chao, "On Bridging Generic and Personalized Federated Learning for Image Classification",
ICLR 2022.

One body, two heads. The generic head learns with the body, by the balanced softmax of the client's
own class counts, and both are averaged: this is BSM with a local prior. The personal head learns
what the generic one leaves over on the client's own classes, by cross-entropy of the sum of both
heads' logits, on features and generic logits that are held constant; it stays with its client.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor
from torch.nn import functional

from fedtail.losses import BalancedSoftmax, LocalLoss, LossContext
from fedtail.methods.base import Method
from fedtail.methods.fedavg import ModelState
from fedtail.methods.personal_heads import PERSONAL, PersonalHeads
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Client, Tensors
from fedtail.training.class_gradients import trained_head
from fedtail.training.classifier import named, prefix, unnamed
from fedtail.training.federated_features import Head


@Method.register("fedrod")
class FedRoD(PersonalHeads[ModelState]):
    """Balanced softmax for everybody, and a head for each client's own classes."""

    family: ClassVar[str] = "personal head"
    paper: ClassVar[str] = (
        "Chen and Chao, On Bridging Generic and Personalized Federated Learning for Image "
        "Classification, ICLR 2022"
    )
    needs: ClassVar[tuple[str, ...]] = ("a linear classifier", "a head kept by each client")
    traffic: ClassVar[str] = "down the name of the classifier"

    loss: LocalLoss = Field(BalancedSoftmax(), description="of the generic head")

    def build_model(self, base: SplitModel) -> SplitModel:
        """Add the personal head; a classifier that is not linear, or frozen, is refused."""
        return self.with_personal_head(base, trained_head(base.classifier))

    def pattern(self, model: SplitModel) -> str:
        """Return the name of the classifier, whose form the personal head has."""
        return prefix(model)

    def tested(self, tensors: Tensors, model: SplitModel) -> dict[str, Tensor]:
        """Return body and generic head."""
        return dict(tensors)

    def own(self, start: Tensors, head: Head, client: Client) -> dict[str, Tensor]:
        """Return the body with both heads, which add up to one."""
        generic = unnamed(start, client.model)
        bias = None if generic.bias is None or head.bias is None else generic.bias + head.bias
        both = Head(generic.weight + head.weight, bias)
        return {**start, **named(both, client.model)}

    def local_loss(
        self, model: SplitModel, x: Tensor, y: Tensor, context: LossContext, aux: Any
    ) -> Tensor:
        """Return the generic head's loss, and that of both on what is held constant."""
        output = model.output(x)
        loss = self.loss(output, y, context)
        if not self.personal_heads:
            return loss
        own = model.extra_heads[PERSONAL](output.features.detach())
        return loss + functional.cross_entropy(output.logits.detach() + own, y)
