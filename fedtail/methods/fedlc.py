"""FedLC.

Zhang, Li, Li, Xu, Wu, Ding, Wu, "Federated Learning with Label Distribution Skew via Logits
Calibration", ICML 2022.

FedAvg whose clients lower each logit by τ n_c^(−1/4) before the softmax, with their own class
counts n_c (Eq. 7). The whole method is its loss, `LogitCalibration`, which every other method can
use as well. Nothing more is sent, and the average is tested with its raw logits. On request the
clients also measure how far their loss moves the head away from rare classes
(`fedtail.metrics.deviation`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from pydantic import Field

from fedtail.forms import COUNT, Form, Number
from fedtail.losses import LocalLoss, LogitCalibration, LossContext
from fedtail.methods.base import Method
from fedtail.methods.fedavg import FedAvg, ModelState
from fedtail.metrics.deviation import Deviation, head_deviation
from fedtail.models.split_model import Output, SplitModel
from fedtail.protocol import Client, Payload, Server, Tensors
from fedtail.reduce import Reduced
from fedtail.training.class_gradients import linear_head


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
    deviation: bool = Field(
        False,
        description="log how far the loss moves the head away from rare and from frequent classes:"
        " one more forward pass over the local data, and five numbers more to the server",
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

    def build_model(self, base: SplitModel) -> SplitModel:
        """Return the model as it is; the deviation is defined for linear classifiers only."""
        if self.deviation:
            linear_head(base.classifier)
        return base

    def aggregate(self, s: ModelState, found: Reduced, server: Server) -> ModelState:
        """Average, and log the deviation if it was measured."""
        if self.deviation:
            server.log("absent_push", found.total("absent_push") / found.total("samples"))
            for side in DEVIATION_SIDES:
                classes = found.total(side)
                if classes:
                    server.log(f"deviation_{side}", math.exp(found.total(f"{side}_log") / classes))
        return super().aggregate(s, found, server)

    def train_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare the model, and what is measured on request."""
        whole = super().train_form(task, model, classes)
        if not self.deviation:
            return whole
        sums = {f"{side}_log": Number() for side in DEVIATION_SIDES}
        return whole.numbers(absent_push=Number(), **dict.fromkeys(DEVIATION_SIDES, COUNT), **sums)

    def at_start(self, payload: Payload, client: Client, context: LossContext) -> dict[str, float]:
        """Measure the deviation at the received model, if asked to."""
        return summary(self.measure(client, context), client) if self.deviation else {}

    def measure(self, client: Client, context: LossContext) -> Deviation:
        """Return the deviation of the received head under the local loss, in evaluation mode."""
        features, residuals, model = [], [], client.model
        model.eval()
        for index in torch.split(torch.arange(len(client.data)), 500):
            x, y = client.data.batch(index)
            with torch.no_grad():
                output = model.output(x)
            logits = output.logits.requires_grad_()
            loss = self.loss(Output(logits, output.features), y, context)
            # The loss is a mean over the batch.
            residuals.append(torch.autograd.grad(loss, logits)[0].cpu() * len(y))
            features.append(output.features.cpu())
        bias = linear_head(model.classifier).bias is not None
        return head_deviation(torch.cat(features), client.data.labels, torch.cat(residuals), bias)

    def extras(
        self, client: Client, steps: int, tensors: Tensors, aux: dict[str, float]
    ) -> Payload:
        """Send what was measured beside the model."""
        sent = super().extras(client, steps, tensors, aux)
        return replace(sent, scalars={**sent.scalars, **aux})


DEVIATION_SIDES = ("minority", "majority")


def summary(found: Deviation, client: Client) -> dict[str, float]:
    """Return sums over a client's rare and frequent classes, and over its samples.

    Rare are the classes with fewer samples than the client's mean class. The deviation is averaged
    by its logarithm; classes that nothing pushes, or nothing pulls, have none.
    """
    counts = client.counts[found.classes].double()
    measured = (found.value > 0) & found.value.isfinite()
    rare = counts < counts.mean()
    sums: dict[str, float] = {"absent_push": found.absent * len(client.data)}
    for side, classes in zip(DEVIATION_SIDES, (rare & measured, ~rare & measured), strict=True):
        sums[side] = int(classes.sum())
        sums[f"{side}_log"] = float(found.value[classes].log().sum())
    return sums
