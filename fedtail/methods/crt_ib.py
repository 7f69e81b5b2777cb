"""cRT-IB: classifier re-training, after instance-balanced training.

Kang, Xie, Rohrbach, Yan, Gordo, Feng, Kalantidis, "Decoupling Representation and Classifier for
Long-Tailed Recognition", ICLR 2020.

In the first part of the rounds FedAvg trains the whole model, each sample as likely as any other.
Then the encoder is frozen, with its BatchNorm statistics, the classifier is drawn anew, and trained
by the same federation with class-balanced batches: each class of a client as likely as any other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor

from fedtail.forms import Form
from fedtail.losses import LossContext
from fedtail.methods.base import Method, action
from fedtail.methods.fedavg import FedAvg, ModelState
from fedtail.models.heads import refuse_frozen
from fedtail.models.split_model import Output, SplitModel
from fedtail.protocol import Client, Exchange, Payload, Server, Task, grouped
from fedtail.training import BatchSampler, ClassBalanced
from fedtail.training.balanced import constant_features
from fedtail.training.classifier import new_classifier, prefix, second_stage


@dataclass(frozen=True)
class CRTState(ModelState):
    """What the server keeps.

    Attributes
    ----------
    retraining
        Whether the second stage has begun.
    """

    retraining: bool = False


@Method.register("crt-ib")
class CRTIB(FedAvg[CRTState]):
    """FedAvg; then a new classifier on the frozen encoder, with class-balanced batches."""

    family: ClassVar[str] = "classifier after training"
    paper: ClassVar[str] = (
        "Kang et al., Decoupling Representation and Classifier for Long-Tailed Recognition, "
        "ICLR 2020"
    )
    traffic: ClassVar[str] = "none; in the second stage only the classifier goes up"

    first_stage: float = Field(
        0.8, gt=0, le=1, description="fraction of the rounds that train the encoder; 1 is FedAvg"
    )
    head_sampler: BatchSampler = Field(
        ClassBalanced(), description="how clients draw batches in the second stage"
    )

    def build_model(self, base: SplitModel) -> SplitModel:
        """Refuse heads with a frozen weight or bias, which could not be trained anew."""
        for head in base.heads if self.first_stage < 1 else ():
            refuse_frozen(head)
        return base

    # Server half

    def new_state(self, tensors: dict[str, Tensor]) -> CRTState:
        """Begin with the first stage."""
        return CRTState(tensors)

    def round(self, s: CRTState, server: Server) -> Exchange[CRTState]:
        """One exchange; the second stage begins with a new classifier."""
        if not second_stage(server.round, server.rounds, self.first_stage):
            return (yield from super().round(s, server))
        if not s.retraining:
            head = new_classifier(server)
            # What the server optimiser remembers of the old classifier is not of this one.
            memory = {name: m for name, m in s.memory.items() if name not in head}
            s = replace(s, model={**s.model, **head}, memory=memory, retraining=True)
        payload = self.broadcast(s, server)
        found = yield [Task(client, "retrain", payload) for client in server.cohort()]
        return self.aggregate(s, found, server)

    # Client half

    def retrain_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare the head alone."""
        whole = self.train_form(task, model, classes)
        start = f"model/{prefix(model)}"
        head = {n: look for n, look in whole.tensors.items() if n.startswith(start)}
        return replace(whole, tensors=head, how={n: whole.how[n] for n in head})

    @action
    def retrain(self, payload: Payload, client: Client) -> Payload:
        """Train the classifier alone, and send nothing else."""
        whole = self.but(sampler=self.head_sampler).train(payload, client)
        start = prefix(client.model)
        head = {n: t for n, t in whole.group("model").items() if n.startswith(start)}
        return replace(whole, tensors=grouped("model", head))

    def local_loss(
        self, model: SplitModel, x: Tensor, y: Tensor, context: LossContext, aux: Any
    ) -> Tensor:
        """In the second stage the features are constants, made in evaluation mode."""
        if not second_stage(context.round, context.rounds, self.first_stage):
            return super().local_loss(model, x, y, context, aux)
        h = constant_features(model, x, "running")
        return self.loss(Output(model.classifier(h), h), y, context)
