"""FedRS.

Li, Zhan, "FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data",
KDD 2021.

FedAvg whose clients scale the logits of classes they miss by α before the softmax, so that they
push down less what they have never seen. The whole method is its loss, `RestrictedSoftmax`. Nothing
more is sent, and the average is tested with its raw logits.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedtail.losses import LocalLoss, RestrictedSoftmax
from fedtail.methods.base import Method
from fedtail.methods.fedavg import FedAvg, ModelState


@Method.register("fedrs")
class FedRS(FedAvg[ModelState]):
    """FedAvg whose clients restrain the logits of classes that they miss."""

    family: ClassVar[str] = "local loss"
    paper: ClassVar[str] = (
        "Li and Zhan, FedRS: Federated Learning with Restricted Softmax for Label Distribution "
        "Non-IID Data, KDD 2021"
    )

    loss: LocalLoss = Field(RestrictedSoftmax(), description="the loss that clients minimise")
