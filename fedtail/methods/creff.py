"""CReFF.

Shang, Lu, Huang, Wang, "Federated Learning on Heterogeneous and Long-Tailed Data via Classifier
Re-Training with Federated Features", IJCAI 2022.

FedAvg trains an extractor u and a head v, which leans towards the frequent classes. Beside their
model, clients send for each of their classes the gradient that their real features give to another
head v̂. The server keeps m features of every class, changes them until they give v̂ the same
gradients, and trains a new v̂ on this balanced set. Tested is u with v̂. The head v̂ takes no part in
local training, so w = (u, v) goes exactly the way of FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedtail.forms import ByClass, Form
from fedtail.losses import LossContext
from fedtail.methods.base import Method
from fedtail.methods.fedavg import FedAvg, ModelState
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Client, Payload, Server, Tensors, grouped
from fedtail.reduce import Reduced
from fedtail.training.class_gradients import (
    ClassGradients,
    as_gradients,
    augmented_gradients,
    class_gradients,
    grad_group,
    grad_rows,
    linear_head,
    trained_head,
)
from fedtail.training.classifier import named, unnamed
from fedtail.training.federated_features import (
    Head,
    Matched,
    Matching,
    Pull,
    match_features,
    new_head,
    train_head,
)
from fedtail.training.prototypes import Wire, for_wire, from_wire, wire_type
from fedtail.volume import Volume, form_bytes, model_bytes


@dataclass(frozen=True)
class CReFFState(ModelState):
    """What the server keeps.

    Attributes
    ----------
    features
        The federated features s_{c,i}, (C, m, d).
    head
        The re-trained head v̂, under the names of the model's own classifier.
    """

    features: Tensor | None = None
    head: dict[str, Tensor] | None = None


@Method.register("creff")
class CReFF(FedAvg[CReFFState]):
    """Re-train the classifier on features whose gradients match those of the clients."""

    family: ClassVar[str] = "classifier re-training"
    paper: ClassVar[str] = (
        "Shang et al., Federated Learning on Heterogeneous and Long-Tailed Data via Classifier "
        "Re-Training with Federated Features, IJCAI 2022"
    )
    needs: ClassVar[tuple[str, ...]] = ("a linear classifier", "which classes a client holds")
    traffic: ClassVar[str] = "down one more head, up one head's gradient for each local class"

    features: int = Field(100, ge=0, description="m, federated features of a class; 0 is FedAvg")
    match_steps: int = Field(100, ge=0, description="I, steps of gradient matching in a round")
    match_lr: float = Field(0.1, gt=0, description="rate of gradient matching")
    matching: Literal["code", "paper"] = Field(
        "code",
        description="code: sum over the rows of the gradient, and the bias as one more row; "
        "paper: mean over the rows of the weight (Eq. 6)",
    )
    head_epochs: int = Field(300, ge=0, description="J, epochs of re-training on all features")
    head_lr: float = Field(0.01, gt=0, description="rate of re-training: 0.01 code, 0.1 paper")
    head_batch: int = Field(32, ge=1, description="batch size of re-training")
    gradients: Literal["all", "augmented"] = Field(
        "all",
        description="all: of every local sample (Eq. 3); augmented: of repeats of a few random "
        "samples of the class, each repeat under one random change of its images (code)",
    )
    wire: Wire = Field("float32", description="precision of class gradients on the wire")
    repeats: int = Field(10, ge=1, description="augmented: repeats of each class")
    repeat_samples: int = Field(32, ge=1, description="augmented: most samples in a repeat")

    def changes_inputs(self) -> bool:
        """Whether class gradients are of images under random changes."""
        return self.gradients == "augmented"

    def build_model(self, base: SplitModel) -> SplitModel:
        """Refuse a classifier that is not linear, or frozen: v̂ would take its place."""
        if self.features:
            trained_head(base.classifier)
        return base

    # Server half

    def init(self, model: SplitModel, server: Server) -> CReFFState:
        """Draw the features from N(0, 1), once, and the first v̂ as a new linear layer."""
        state = CReFFState(model.tensors())
        if not self.features:
            return state
        linear = linear_head(model.classifier)
        shape = (linear.out_features, self.features, linear.in_features)
        features = torch.randn(shape, generator=server.generator("features"))
        return replace(state, features=features, head=named(fresh_head(server, model), model))

    def broadcast(self, s: CReFFState, server: Server) -> Payload:
        """Send w and v̂; the extractor is the same for both."""
        payload = super().broadcast(s, server)
        return replace(payload, tensors={**payload.tensors, **grouped("head", s.head or {})})

    def aggregate(self, s: CReFFState, found: Reduced, server: Server) -> CReFFState:
        """Average w, match the features' gradients with the clients', re-train v̂."""
        new = super().aggregate(s, found, server)
        if s.features is None or s.head is None:
            return new
        # Eq. 4: g_c^agg is the plain mean over the clients that hold the class.
        g = as_gradients(from_wire(found["grad"]))
        features = s.features.clone()
        if len(g[0]):
            matched = self.match(features[g[0]], s.head, g, server)
            features[g[0]] = matched.features.cpu()
            server.log("match_loss", matched.loss)
            server.log("dissimilarity_before", float(matched.before.mean()))
            server.log("dissimilarity_after", float(matched.after.mean()))
        return replace(new, features=features, head=self.retrain(features, server))

    def match(self, features: Tensor, head: Tensors, g: ClassGradients, server: Server) -> Matched:
        """I steps of SGD on the features of the reported classes (Eq. 5 and 6), at v̂ of before."""
        num_classes, device = server.num_classes, server.device
        classes, weight, bias = g
        target = classes.to(device), weight.to(device), None if bias is None else bias.to(device)
        matching = {
            "paper": Matching(scale=1 / num_classes, eps=0.0, bias=False),
            "code": Matching(scale=1.0, eps=1e-6, bias=True),
        }[self.matching]
        start = unnamed(head, server.model).to(device)
        steps, rate, pull = self.match_steps, self.match_lr, self.pull(server)
        return match_features(features.to(device), start, target, matching, steps, rate, pull)

    def pull(self, server: Server) -> Pull | None:
        """Return what features are drawn to beside their gradients: here nothing."""
        return None

    def retrain(self, features: Tensor, server: Server) -> dict[str, Tensor]:
        """Return a new head after J epochs of SGD with cross-entropy on all C·m features."""
        trained = train_head(
            fresh_head(server, server.model).to(server.device),
            features.to(server.device),
            self.head_epochs,
            self.head_batch,
            self.head_lr,
            server.generator("head batches"),
        )
        return named(trained.to(torch.device("cpu")), server.model)

    def volume(self, model: SplitModel, classes: int, held: float) -> Volume | None:
        """Count the model both ways, down v̂, up the gradients of a client's classes."""
        if not self.features:
            return None
        head = sum(t.numel() * t.element_size() for t in model.classifier.parameters())
        return Volume(
            down=model_bytes(model) + head,
            up=form_bytes(self.train_form(Payload(), model, classes), held),
            less="method.wire=float16 sends half of the gradients",
        )

    def eval_model(self, s: CReFFState) -> Tensors:
        """Return u with v̂."""
        return {**s.model, **(s.head or {})}

    # Client half

    def train_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare w_k and the gradient of each local class."""
        whole = super().train_form(task, model, classes)
        if not self.features:
            return whole
        rows = grad_rows(model.classifier, wire_type(self.wire))
        return whole.group("grad", rows, ByClass(classes))

    def at_start(
        self, payload: Payload, client: Client, context: LossContext
    ) -> ClassGradients | None:
        """Real feature gradients (Eq. 3) at (u, v̂) as received, before any local step."""
        head = payload.group("head")
        if not head:
            return None
        model, data = client.model, client.data
        own = model.tensors()
        model.load({**own, **head})
        if self.gradients == "all":
            g = class_gradients(model, model.classifier, data, client.num_classes)
        else:
            g = augmented_gradients(
                model,
                model.classifier,
                data,
                client.num_classes,
                client.generator("class gradients"),
                self.repeats,
                self.repeat_samples,
            )
        model.load(own)
        return g

    def extras(
        self, client: Client, steps: int, tensors: Tensors, aux: ClassGradients | None
    ) -> Payload:
        """Send the gradient of each local class beside w_k."""
        sent = super().extras(client, steps, tensors, aux)
        return sent if aux is None else replace(sent, tensors=for_wire(grad_group(aux), self.wire))


def fresh_head(server: Server, model: SplitModel) -> Head:
    """Return the random head of this round, shaped as the model's own."""
    linear = linear_head(model.classifier)
    bias = linear.bias is not None
    return new_head(linear.out_features, linear.in_features, bias, server.generator("head"))
