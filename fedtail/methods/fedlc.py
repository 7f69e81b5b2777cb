"""FedLC.

Zhang, Li, Li, Xu, Wu, Ding, Wu, "Federated Learning with Label Distribution Skew via Logits
Calibration", ICML 2022.

FedAvg whose clients lower each logit by τ n_c^(−1/4) before the softmax, with their own class
counts n_c (Eq. 7). The whole method is its loss, `LogitCalibration`, which every other method can
use as well. Nothing more is sent, and the average is tested with its raw logits. The deviation
bound of its analysis is measured with any method (`fedtail.metrics.deviation`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from fedtail.losses import LocalLoss, LogitCalibration
from fedtail.methods.base import Method
from fedtail.methods.fedavg import FedAvg, ModelState


@Method.register("fedlc")
class FedLC(FedAvg[ModelState]):
    """FedAvg with logits calibrated by each client's class counts."""

    family: ClassVar[str] = "local loss"
    paper: ClassVar[str] = (
        "Zhang et al., Federated Learning with Label Distribution Skew via Logits Calibration, "
        "ICML 2022"
    )

    loss: LocalLoss = Field(LogitCalibration(), description="the loss that clients minimise")
    tau: float | None = Field(
        None, ge=0, description="short for loss.tau, the strength of the margins; kept there"
    )
    absent: float | None = Field(
        None,
        ge=0,
        description="short for loss.absent, the count of a class that the client lacks; kept there",
    )

    @classmethod
    def _completed(cls, value: Any) -> Any:
        """Move what is the loss's to where its default and limits are."""
        if not isinstance(value, Mapping):
            return super()._completed(value)
        fields = dict(value)
        short = {name: fields.pop(name, None) for name in ("tau", "absent")}
        own = {name: number for name, number in short.items() if number is not None}
        loss = fields.get("loss", {})
        if own and isinstance(loss, LocalLoss):
            fields["loss"] = loss.but(**own)
        elif own and isinstance(loss, str | Mapping):
            fields["loss"] = {**({"name": loss} if isinstance(loss, str) else loss), **own}
        return super()._completed(fields)
