"""τ-normalisation of the classifier.

Kang, Xie, Rohrbach, Yan, Gordo, Feng, Kalantidis, "Decoupling Representation and Classifier for
Long-Tailed Recognition", ICLR 2020.

Training is FedAvg's. The classifier vector w_c of a frequent class grows longer than that of a rare
one, and wins by its length. What is tested has w_c / ‖w_c‖^τ instead, and no bias (Eq. 4): τ = 1
makes all vectors equally long, τ = 0 leaves the model as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedtail.methods.base import Method
from fedtail.methods.fedavg import FedAvg, ModelState
from fedtail.models.heads import class_axis, refuse_frozen
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Exchange, Server


@Method.register("tau-norm")
class TauNorm(FedAvg[ModelState]):
    """FedAvg, tested with classifier vectors whose length no longer follows frequency."""

    family: ClassVar[str] = "classifier after training"
    paper: ClassVar[str] = (
        "Kang et al., Decoupling Representation and Classifier for Long-Tailed Recognition, "
        "ICLR 2020"
    )

    tau: float = Field(
        0.7, ge=0, le=1, description="τ: 1 makes all class vectors equally long; 0 is FedAvg"
    )

    def build_model(self, base: SplitModel) -> SplitModel:
        """Refuse heads with a frozen weight or bias, which could not be changed."""
        for head in base.heads if self.tau else ():
            refuse_frozen(head)
        return base

    def finalize(self, s: ModelState, server: Server) -> Exchange[ModelState]:
        """Normalise the classifier, on the copy that is tested; nobody is asked."""
        yield from ()
        return replace(s, model={**s.model, **self.normalised(s.model, server.model)})

    def normalised(self, tensors: Mapping[str, Tensor], model: SplitModel) -> dict[str, Tensor]:
        """w_c ← w_c / ‖w_c‖^τ, b ← 0, in every head (Eq. 4); with τ = 0 nothing."""
        if self.tau == 0:
            # w_c / 1 is w_c, but the bias would be lost: no normalisation is FedAvg.
            return {}
        changed = {}
        for name, head in zip(model.head_names, model.heads, strict=True):
            prefix = f"{name}." if name else ""
            weight = tensors[f"{prefix}weight"]
            axis = 1 - class_axis(head)
            norms = torch.linalg.vector_norm(weight, dim=axis, keepdim=True)
            # A vector of zeros has no direction, and stays.
            scale = torch.where(norms > 0, norms, 1.0) ** -self.tau
            changed[f"{prefix}weight"] = weight * scale
            if f"{prefix}bias" in tensors:
                changed[f"{prefix}bias"] = torch.zeros_like(tensors[f"{prefix}bias"])
        return changed
