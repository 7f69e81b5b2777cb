"""LADE.

Hong, Han, Choi, Seo, Kim, Chang, "Disentangling Label Distribution for Long-tailed Visual
Recognition", CVPR 2021.

FedAvg whose clients minimise the balanced softmax of a class prior and a regulariser, LADER, that
frees the logits themselves of the class distribution of the data. The whole method is its loss,
`LADELoss`; the average is tested with its raw logits.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedtail.losses import LADELoss, LocalLoss
from fedtail.methods.base import Method
from fedtail.methods.fedavg import FedAvg, ModelState


@Method.register("lade")
class LADE(FedAvg[ModelState]):
    """FedAvg with balanced softmax and logits that are freed of the class distribution."""

    family: ClassVar[str] = "local loss"
    paper: ClassVar[str] = (
        "Hong et al., Disentangling Label Distribution for Long-tailed Visual Recognition, "
        "CVPR 2021"
    )

    loss: LocalLoss = Field(LADELoss(), description="the loss that clients minimise")
