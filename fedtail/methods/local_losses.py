"""BSM, Fed-Focal, FedRS, LADE: FedAvg whose clients minimise another loss.

Each is the default of one field and nothing else: every other method can use the losses too, and
the average is tested with its raw logits. The class prior that some need is each client's own class
counts, or by another name those of all (``prior=global``) or an estimate (``prior=proxy``).

- BSM adds the log prior to the logits before the softmax (`BalancedSoftmax`). Ren, Yu, Sheng, Ma,
  Zhao, Yi, Li, "Balanced Meta-Softmax for Long-Tailed Visual Recognition", NeurIPS 2020.
- Fed-Focal has −(1 − p_y)^γ log p_y: what is right already counts less (`Focal`). Sarkar, Narang,
  Rai, "Fed-Focal Loss for Imbalanced Data Classification in Federated Learning", 2020; Lin, Goyal,
  Girshick, He, Dollár, "Focal Loss for Dense Object Detection", ICCV 2017. This is the baseline of
  that name in the papers on federated long tails; the choice of clients that Sarkar et al. add is
  no part of it.
- FedRS scales the logits of classes that a client misses by α, so that it pushes down less what it
  has never seen (`RestrictedSoftmax`). Li, Zhan, "FedRS: Federated Learning with Restricted Softmax
  for Label Distribution Non-IID Data", KDD 2021.
- LADE adds to BSM a regulariser, LADER, that frees the logits themselves of the class distribution
  of the data (`LADELoss`). Hong, Han, Choi, Seo, Kim, Chang, "Disentangling Label Distribution for
  Long-tailed Visual Recognition", CVPR 2021.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedtail.losses import BalancedSoftmax, Focal, LADELoss, LocalLoss, RestrictedSoftmax
from fedtail.methods.base import Method
from fedtail.methods.fedavg import FedAvg, ModelState


@Method.register("bsm")
class BSM(FedAvg[ModelState]):
    """FedAvg with the balanced softmax of a local, global or estimated class prior."""

    family: ClassVar[str] = "local loss"
    paper: ClassVar[str] = (
        "Ren et al., Balanced Meta-Softmax for Long-Tailed Visual Recognition, NeurIPS 2020"
    )

    loss: LocalLoss = Field(BalancedSoftmax(), description="the loss that clients minimise")


@Method.register("fed-focal")
class FedFocal(FedAvg[ModelState]):
    """FedAvg with the focal loss: easy samples count less."""

    family: ClassVar[str] = "local loss"
    paper: ClassVar[str] = (
        "Sarkar et al., Fed-Focal Loss for Imbalanced Data Classification in Federated Learning, "
        "2020; Lin et al., Focal Loss for Dense Object Detection, ICCV 2017"
    )

    loss: LocalLoss = Field(Focal(), description="the loss that clients minimise")


@Method.register("fedrs")
class FedRS(FedAvg[ModelState]):
    """FedAvg whose clients restrain the logits of classes that they miss."""

    family: ClassVar[str] = "local loss"
    paper: ClassVar[str] = (
        "Li and Zhan, FedRS: Federated Learning with Restricted Softmax for Label Distribution "
        "Non-IID Data, KDD 2021"
    )

    loss: LocalLoss = Field(RestrictedSoftmax(), description="the loss that clients minimise")


@Method.register("lade")
class LADE(FedAvg[ModelState]):
    """FedAvg with balanced softmax and logits that are freed of the class distribution."""

    family: ClassVar[str] = "local loss"
    paper: ClassVar[str] = (
        "Hong et al., Disentangling Label Distribution for Long-tailed Visual Recognition, "
        "CVPR 2021"
    )

    loss: LocalLoss = Field(LADELoss(), description="the loss that clients minimise")
