"""BSM: balanced softmax.

Ren, Yu, Sheng, Ma, Zhao, Yi, Li, "Balanced Meta-Softmax for Long-Tailed Visual Recognition",
NeurIPS 2020.

FedAvg whose clients add the log prior to their logits before the softmax; the average is tested
with its raw logits. The whole method is its loss, `BalancedSoftmax`. The prior is each client's
own class counts, or by another name those of all (``prior=global``) or an estimate of them
(``prior=proxy``).
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedtail.losses import BalancedSoftmax, LocalLoss
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
