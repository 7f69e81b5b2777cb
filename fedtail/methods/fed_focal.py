"""Fed-Focal.

Sarkar, Narang, Rai, "Fed-Focal Loss for Imbalanced Data Classification in Federated Learning",
2020; the loss is from Lin, Goyal, Girshick, He, Dollár, "Focal Loss for Dense Object Detection",
ICCV 2017.

FedAvg whose clients minimise the focal loss, −(1 − p_y)^γ log p_y: what they get right already
counts less. This is the baseline of that name in the papers on federated long tails; the choice of
clients that Sarkar et al. add is no part of it. The whole method is its loss, `Focal`.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedtail.losses import Focal, LocalLoss
from fedtail.methods.base import Method
from fedtail.methods.fedavg import FedAvg, ModelState


@Method.register("fed-focal")
class FedFocal(FedAvg[ModelState]):
    """FedAvg with the focal loss: easy samples count less."""

    family: ClassVar[str] = "local loss"
    paper: ClassVar[str] = (
        "Sarkar et al., Fed-Focal Loss for Imbalanced Data Classification in Federated Learning, "
        "2020; Lin et al., Focal Loss for Dense Object Detection, ICCV 2017"
    )

    loss: LocalLoss = Field(Focal(), description="the loss that clients minimise")
