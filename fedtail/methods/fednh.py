"""FedNH and FedUH.

Dai, Chen, Li, Heinecke, Sun, Xu, "Tackling Data Heterogeneity in Federated Learning with Class
Prototypes", AAAI 2023.

The classifier is a set of unit vectors, one a class, that start at right angles and that local
training leaves alone: logits are s times their cosines with the features. After training a client
sends the direction of the mean of each of its classes' features, times how many samples that is.
The server moves each prototype a little towards the direction of their sum, and averages the bodies
without regard to sizes. FedUH leaves the prototypes where they started.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from fedtail.forms import Form, Like, Mean, Total
from fedtail.methods.base import Asks, Method
from fedtail.methods.fedavg import FedAvg, ModelState
from fedtail.models.experts import with_new_heads
from fedtail.models.fixed_heads import PrototypeHead
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Client, Payload, Server, Tensors, grouped
from fedtail.reduce import Reduced
from fedtail.training.class_gradients import trained_head
from fedtail.training.class_means import features_of, sums_by_class
from fedtail.training.classifier import prefix


@Method.register("fednh")
class FedNH(FedAvg[ModelState]):
    """Class prototypes in the place of a classifier, moved by the clients' class means."""

    family: ClassVar[str] = "fixed classifier"
    paper: ClassVar[str] = (
        "Dai et al., Tackling Data Heterogeneity in Federated Learning with Class Prototypes, "
        "AAAI 2023"
    )
    needs: ClassVar[tuple[str, ...]] = (
        "a linear classifier, which it replaces",
        "class counts and class means of features, added up over the cohort",
    )
    traffic: ClassVar[str] = "up one number for each class; class means in the classifier's place"

    rho: float = Field(
        0.9, ge=0, le=1, description="ρ: what a prototype keeps of itself in a round; 1 is FedUH"
    )
    scale: float = Field(30.0, gt=0, description="s, the factor of all cosines, at the start")
    learn_scale: bool = Field(True, description="train s, and average it like a weight")
    weights: Literal["equal", "samples"] = Field(
        "equal", description="how bodies are averaged: each the same (code), or by samples"
    )

    def build_model(self, base: SplitModel) -> SplitModel:
        """Put prototypes in the place of a linear classifier."""

        def prototype_head(head: nn.Module, name: str) -> nn.Module:
            linear = trained_head(head)
            return PrototypeHead(
                linear.in_features, linear.out_features, self.scale, self.learn_scale
            )

        return with_new_heads(base, prototype_head)

    # Server half

    def aggregate(self, s: ModelState, found: Reduced, server: Server) -> ModelState:
        """Average the bodies, and move the prototypes of the classes that were reported."""
        new, told = super().aggregate(s, found, server), found["proto"]
        if self.rho == 1 or not told:
            return new
        place = f"{prefix(server.model)}prototypes"
        moved = moved_prototypes(s.model[place], told["sums"], told["counts"], self.rho)
        server.log("prototype_shift", float((moved - s.model[place]).norm(dim=1).mean()))
        return replace(new, model={**new.model, place: moved})

    def asks(self) -> Asks:
        """Send class means as they are, if any."""
        numbers = "" if self.rho == 1 else "class means and counts are sent as they are"
        return super().asks()._replace(numbers=numbers)

    # Client half

    def train_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare body and scale, and of every class n_c μ_c and n_c."""
        form = super().train_form(task, model, classes)
        form = form.without(f"model/{prefix(model)}prototypes")
        if self.weights == "equal":
            each = {
                n: how._replace(by="") if isinstance(how, Mean) else how
                for n, how in form.how.items()
            }
            form = replace(form, how=each)
        if self.rho == 1:
            return form
        rows = {
            "sums": Like((classes, model.feature_dim)),
            "counts": Like((classes,), torch.int64, low=0, counted=True),
        }
        return form.group("proto", rows, Total())

    def kept(self, model: SplitModel) -> dict[str, str]:
        """Keep no prototypes, whatever else is kept of the buffers."""
        place = f"{prefix(model)}prototypes"
        return {at: name for at, name in super().kept(model).items() if name != place}

    def sent(self, payload: Payload, model: SplitModel, names: Any) -> dict[str, str]:
        """Send no prototypes: the server has them."""
        place = f"{prefix(model)}prototypes"
        return {at: n for at, n in super().sent(payload, model, names).items() if n != place}

    def extras(self, client: Client, steps: int, tensors: Tensors, aux: Any) -> Payload:
        """Send n_c times the direction of the mean unit feature of each class, and n_c."""
        sent = super().extras(client, steps, tensors, aux)
        if self.rho == 1:
            return sent
        client.model.load(tensors)
        unit = functional.normalize(features_of(client.model, client.data), dim=1)
        found = sums_by_class(unit, client.data.labels, client.num_classes)
        sums = functional.normalize(found.sums, dim=1) * found.counts[:, None]
        own = {"sums": sums, "counts": found.counts}
        return replace(sent, tensors={**sent.tensors, **grouped("proto", own)})


@Method.register("feduh")
class FedUH(FedNH):
    """FedNH with prototypes that stay where they start: at right angles to each other."""

    needs: ClassVar[tuple[str, ...]] = ("a linear classifier, which it replaces",)
    traffic: ClassVar[str] = "less: the classifier only down"

    rho: float = Field(1.0, ge=0, le=1, description="ρ: what a prototype keeps of itself")


def moved_prototypes(old: Tensor, sums: Tensor, counts: Tensor, rho: float) -> Tensor:
    """Return W_c ← normalise(ρ W_c + (1−ρ) normalise(Σ n_c μ_c)); unreported ones as they were."""
    new = rho * old + (1 - rho) * functional.normalize(sums, dim=1)
    return torch.where((counts > 0)[:, None], functional.normalize(new, dim=1), old)
