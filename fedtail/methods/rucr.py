"""RUCR.

Huang and others, "Federated Learning with Long-Tailed Data via Representation Unification and
Classifier Rectification", IEEE TIFS 2024.

A round has two exchanges. The cohort sends the sums of its features by class, of which the server
makes a prototype for each class; then it trains with a second loss that compares features with all
prototypes, under a margin for rare classes. In the last rounds the head that is tested is another
one: clients re-train the average on mixtures of every class's prototype with features of their own,
as many for each class, and the server averages these heads. Training goes on from the old one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from fedtail.forms import SAMPLES, Form, Like, Total, like
from fedtail.losses import LossContext
from fedtail.methods.base import Asks, Method, action
from fedtail.methods.fedavg import FedAvg, ModelState
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Client, Exchange, Payload, Server, Task, grouped
from fedtail.reduce import Reduced
from fedtail.training.class_gradients import trained_head
from fedtail.training.class_means import SumsByClass, features_of, sums_by_class
from fedtail.training.classifier import named, unnamed
from fedtail.training.federated_features import Head, train_head


class Prototypes(NamedTuple):
    """What features are compared with.

    Attributes
    ----------
    prototypes
        Unit vectors (C, d), zero where there is none.
    present
        Which classes the client holds, (C,).
    margin
        log π_c of the cohort, zero where there is no sample.
    """

    prototypes: Tensor
    present: Tensor
    margin: Tensor


@Method.register("rucr")
class RUCR(FedAvg[ModelState]):
    """Draws features towards class prototypes; tests a head re-trained on mixtures with them."""

    family: ClassVar[str] = "classifier re-training"
    paper: ClassVar[str] = (
        "Huang et al., Federated Learning with Long-Tailed Data via Representation Unification and "
        "Classifier Rectification, IEEE TIFS 2024"
    )
    needs: ClassVar[tuple[str, ...]] = (
        "a linear classifier",
        "class counts and class means of features, added up over the cohort",
    )
    traffic: ClassVar[str] = (
        "the model down once more; up class sums of features and counts, down their means; at the "
        "end the same for all clients, and a head up from some"
    )

    weight: float = Field(0.15, ge=0, description="weight of the comparison with prototypes")
    temperature: float = Field(1.0, gt=0, description="t: cosines are divided by it")
    absent: Literal["zero", "mask"] = Field(
        "zero",
        description="classes that the client lacks: a cosine of 0 (code), or not in the softmax",
    )
    last: int = Field(20, ge=0, description="rounds at the end that test a re-trained head")
    per_class: int = Field(100, ge=1, description="mixtures of each class")
    head_epochs: int = Field(50, ge=0, description="passes over the mixtures")
    head_lr: float = Field(0.01, gt=0, description="rate of re-training, by SGD")
    head_batch: int = Field(256, ge=1, description="batch size of re-training")
    least: float = Field(0.35, ge=0, le=1, description="least share of the prototype in a mixture")
    most: float = Field(0.95, ge=0, le=1, description="largest share of the prototype")
    length: Literal["features", "unit"] = Field(
        "features",
        description="of mixtures: brought to the mean length of the client's features, which the "
        "tested head will meet, or as they are made, of vectors of length 1 (code)",
    )

    def build_model(self, base: SplitModel) -> SplitModel:
        """Refuse a classifier that is not linear, or frozen."""
        trained_head(base.classifier)
        return base

    # Server half

    def round(self, s: ModelState, server: Server) -> Exchange[ModelState]:
        """Ask the cohort for class sums, then have it train with the prototypes."""
        if not self.weight:
            return (yield from super().round(s, server))
        asked, cohort = self.broadcast(s, server), server.cohort()
        found = yield [Task(client, "class_means", asked) for client in cohort]
        told = with_prototypes(asked, found)
        found = yield [Task(client, "train", told) for client in cohort]
        return self.aggregate(s, found, server)

    def finalize(self, s: ModelState, server: Server) -> Exchange[ModelState]:
        """In the last rounds, test a head that clients re-trained."""
        if not self.head_epochs or server.round <= server.rounds - self.last:
            yield from ()
            return s
        asked = self.broadcast(s, server)
        found = yield [Task(client, "class_means", asked) for client in server.clients]
        told = with_prototypes(asked, found)
        chosen = server.cohort(purpose="re-training")
        found = yield [Task(client, "retrain", told) for client in chosen]
        return replace(s, model={**s.model, **found["head"]})

    def asks(self) -> Asks:
        """Ask the cohort twice, and once more after training."""
        numbers = "class means and counts are sent as they are"
        return super().asks()._replace(after=bool(self.last and self.head_epochs), numbers=numbers)

    # Client half

    def class_means_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare Σ h and n of each class."""
        rows = {
            "sums": Like((classes, model.feature_dim)),
            "counts": Like((classes,), torch.int64, low=0, counted=True),
        }
        return Form().group("means", rows, Total())

    @action
    def class_means(self, payload: Payload, client: Client) -> Payload:
        """Send what the features of each class add up to, at the received model."""
        self.load(payload, client)
        h = features_of(client.model, client.data)
        found = sums_by_class(h, client.data.labels, client.num_classes)
        return Payload(grouped("means", found._asdict()))

    def at_start(self, payload: Payload, client: Client, context: LossContext) -> Prototypes | None:
        """Return what features are compared with, if anything."""
        means = payload.tensors.get("proto/means")
        if means is None:
            return None
        counts = payload.tensors["proto/counts"].to(client.device)
        ratio = counts / counts.sum().clamp(min=1)
        margin = torch.where(counts > 0, ratio, 1.0).log()
        unit = functional.normalize(means.to(client.device), dim=1)
        return Prototypes(unit, context.counts > 0, margin)

    def local_loss(
        self, model: SplitModel, x: Tensor, y: Tensor, context: LossContext, aux: Any
    ) -> Tensor:
        """Return the loss, and the weighted cross-entropy of cosines with prototypes."""
        output = model.output(x)
        loss = self.loss(output, y, context)
        if aux is None:
            return loss
        return loss + self.weight * self.compared(output.features, y, aux)

    def compared(self, h: Tensor, y: Tensor, to: Prototypes) -> Tensor:
        """Return −log softmax(cos(h, p) / t + [c = y] log π_c)_y."""
        own = y[:, None] == torch.arange(len(to.present), device=y.device)
        cosines = functional.normalize(h, dim=1) @ to.prototypes.T / self.temperature
        left_out = 0.0 if self.absent == "zero" else -torch.inf
        cosines = torch.where(to.present, cosines, left_out)
        return functional.cross_entropy(cosines + own * to.margin, y)

    def retrain_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare a head."""
        head = named(unnamed(dict(model.live()), model), model)
        return Form().group("head", like(head.items())).numbers(samples=SAMPLES)

    @action
    def retrain(self, payload: Payload, client: Client) -> Payload:
        """Send the received head re-trained; without samples as it is, and it weighs nothing."""
        client.model.load(payload.group("model"))
        head = unnamed(payload.group("model"), client.model)
        if len(client.data):
            head = self.rectified(head, payload, client)
        return Payload(grouped("head", named(head, client.model)), {"samples": len(client.data)})

    def rectified(self, head: Head, payload: Payload, client: Client) -> Head:
        """Re-train a head on mixtures of prototypes with the client's features."""
        counts = payload.tensors["proto/counts"]
        classes = (counts > 0).nonzero().flatten()
        h = features_of(client.model, client.data)
        features = self.mixtures(
            payload.tensors["proto/means"][classes], h, client.generator("mixtures")
        )
        return train_head(
            head,
            features,
            self.head_epochs,
            self.head_batch,
            self.head_lr,
            client.generator("head batches"),
            classes,
        )

    def mixtures(self, means: Tensor, h: Tensor, generator: torch.Generator) -> Tensor:
        """Return λ p_c + (1 − λ) h / ‖h‖ for random features h, (classes, m, d)."""
        rows, m = len(means), self.per_class
        share = torch.rand(rows, m, 1, generator=generator) * (self.most - self.least) + self.least
        index = torch.randint(len(h), (rows, m), generator=generator)
        p, own = functional.normalize(means, dim=1)[:, None], functional.normalize(h, dim=1)[index]
        mixed = share * p + (1 - share) * own
        return mixed * h.norm(dim=1).mean() if self.length == "features" else mixed


def with_prototypes(asked: Payload, found: Reduced) -> Payload:
    """Return what is sent in the second exchange: the means of all, and how many samples they have.

    Parameters
    ----------
    asked
        What was sent in the first.
    found
        What came back.
    """
    told = found["means"]
    means = SumsByClass(told["sums"], told["counts"]).means
    more = {"proto/means": means, "proto/counts": told["counts"]}
    return replace(asked, tensors={**asked.tensors, **more})
