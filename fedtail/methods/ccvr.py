"""CCVR: classifier calibration with virtual representations.

Luo, Chen, Hu, Zhang, Liang, Feng, "No Fear of Heterogeneity: Classifier Calibration for Federated
Learning with Non-IID Data", NeurIPS 2021.

Training is FedAvg's. After it, every client sends of each of its classes how many samples it has,
and the sums of their features and of the products of these. Added up, they give the mean and the
covariance of each class (Eq. 3 and 4), exactly as if the server had seen all features. It draws M_c
virtual features from each Gaussian, and re-trains the classifier on them. The encoder stays as it
is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field

from fedtail.forms import ByClass, Form, Like
from fedtail.methods.base import Asks, Method, action
from fedtail.methods.fedavg import FedAvg, ModelState
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Client, Exchange, Payload, Server, Task, grouped
from fedtail.training.class_gradients import trained_head
from fedtail.training.classifier import named, unnamed
from fedtail.training.federated_features import train_head
from fedtail.training.moments import (
    Products,
    class_sums,
    pooled,
    products_shape,
    sample_features,
)
from fedtail.volume import Volume, form_bytes, model_bytes


@Method.register("ccvr")
class CCVR(FedAvg[ModelState]):
    """FedAvg, then re-train the classifier on features drawn from each class's Gaussian."""

    family: ClassVar[str] = "classifier after training"
    paper: ClassVar[str] = (
        "Luo et al., No Fear of Heterogeneity: Classifier Calibration for Federated Learning with "
        "Non-IID Data, NeurIPS 2021"
    )
    needs: ClassVar[tuple[str, ...]] = (
        "a linear classifier",
        "class counts, feature sums and sums of their products, over all clients",
    )
    traffic: ClassVar[str] = (
        "once, after training: the model down to every client, and up a count, the sum of the "
        "features and of their products for each local class, in double precision"
    )

    samples: int = Field(500, ge=0, description="M_c, virtual features of a class; 0 is FedAvg")
    head_epochs: int = Field(10, ge=0, description="passes over all virtual features; 0 is FedAvg")
    head_lr: float = Field(0.01, gt=0, description="rate of re-training, by SGD")
    head_batch: int = Field(64, ge=1, description="batch size of re-training")
    covariance: Products = Field(
        "full",
        description="what is sent of a class's products: the triangle of d(d+1)/2 numbers; their "
        "diagonal, d; or a sketch of d times rank, exact for a class of as many samples",
    )
    rank: int = Field(32, ge=1, description="columns of a low-rank sketch")

    def build_model(self, base: SplitModel) -> SplitModel:
        """Refuse a classifier that is not linear, or frozen."""
        trained_head(base.classifier)
        return base

    # Server half

    def finalize(self, s: ModelState, server: Server) -> Exchange[ModelState]:
        """Ask all clients for their moments, pool them, and calibrate the classifier."""
        if not self.samples or not self.head_epochs:
            return s
        question = Payload(grouped("model", s.model))
        if self.covariance == "low-rank":
            draw = server.generator("products")
            test = torch.randn(server.model.feature_dim, self.rank, generator=draw)
            question = replace(question, tensors={**question.tensors, "sketch/test": test})
        found = yield [Task(client, "moments", question) for client in server.clients]
        told = pooled(found["moments"], question.tensors.get("sketch/test"))
        features = sample_features(told, self.samples, server.generator("virtual features"))
        head = train_head(
            unnamed(s.model, server.model).to(server.device),
            features.to(server.device),
            self.head_epochs,
            self.head_batch,
            self.head_lr,
            server.generator("head batches"),
            told.classes,
        )
        calibrated = named(head.to(torch.device("cpu")), server.model)
        return replace(s, model={**s.model, **calibrated})

    def asks(self) -> Asks:
        """Ask everybody for the moments, after training."""
        return super().asks()._replace(after=True)

    # Client half

    def moments_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare n_c, Σ h and the upper triangle of Σ h hᵀ of every local class."""
        d = model.feature_dim
        rows = {
            "counts": Like((), torch.int64, low=0, counted=True),
            "sums": Like((d,), torch.float64),
            "products": Like(products_shape(d, self.covariance, self.rank), torch.float64),
        }
        return Form().group("moments", rows, ByClass(classes, mean=False))

    @action
    def moments(self, payload: Payload, client: Client) -> Payload:
        """Send n_c, Σ h and Σ h hᵀ of every local class, at the model that will be tested."""
        # Not `load`: the tested model has the average statistics, whatever clients keep.
        client.model.load(payload.group("model"))
        test = payload.tensors.get("sketch/test")
        sums = class_sums(client.model, client.data, products=self.covariance, test=test)
        return Payload(grouped("moments", sums._asdict()))

    def volume(self, model: SplitModel, classes: int, held: float) -> Volume:
        """Count the model both ways, and once, after training, the moments of all."""
        question = model_bytes(model)
        if self.covariance == "low-rank":
            question += 4 * model.feature_dim * self.rank
        return Volume(
            down=model_bytes(model),
            up=form_bytes(self.train_form(Payload(), model, classes), held),
            once=question + form_bytes(self.moments_form(Payload(), model, classes), held),
            less="covariance=diagonal or covariance=low-rank sends less",
        )
