"""FedDF: ensemble distillation for model fusion.

Lin, Kong, Stich, Jaggi, "Ensemble Distillation for Robust Model Fusion in Federated Learning",
NeurIPS 2020.

The server averages the uploads as FedAvg does, and then trains the average, on unlabelled samples
of its own, to predict what the uploads predict together: the softmax of the mean of their logits
(Eq. 1, Algorithm 1). Clients notice nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedtail.forms import Form
from fedtail.methods.base import Asks, Method
from fedtail.methods.fedavg import FedAvg, ModelState
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Payload, Server, Tensors
from fedtail.reduce import Reduced
from fedtail.training import LocalTraining
from fedtail.training.distillation import distil, divergence, held, predictions

TEACHERS = "every client's own model is a teacher"


@Method.register("feddf")
class FedDF(FedAvg[ModelState]):
    """Distils the mean logits of the uploads into their average, on unlabelled server data."""

    family: ClassVar[str] = "server data"
    paper: ClassVar[str] = (
        "Lin et al., Ensemble Distillation for Robust Model Fusion in Federated Learning, "
        "NeurIPS 2020"
    )
    needs: ClassVar[tuple[str, ...]] = ("unlabelled server data",)
    server_data: ClassVar[Literal["none", "labelled", "unlabelled"]] = "unlabelled"

    distil_steps: int = Field(1000, ge=0, description="steps of distillation a round; 0 is FedAvg")
    distil_lr: float = Field(1e-3, gt=0, description="rate of distillation, by Adam; a cosine to 0")
    distil_batch: int = Field(128, ge=1, description="batch size of distillation")
    temperature: float = Field(1.0, gt=0, description="T of the softmax, of teacher and student")
    patience: int | None = Field(
        None, ge=1, description="stop after so many steps without gain on held-out server data"
    )
    held_out: float = Field(
        0.1, gt=0, lt=1, description="with patience: share of the server data that is held out"
    )

    def asks(self) -> Asks:
        """Need every client's own model."""
        return super().asks()._replace(single=TEACHERS)

    def aggregate(self, s: ModelState, found: Reduced, server: Server) -> ModelState:
        """Average, then distil the ensemble into the average."""
        new = super().aggregate(s, found, server)
        voices = [u.payload.group("model") for u in found.each if u.payload.scalars["samples"]]
        if not self.distil_steps or not voices:
            return new
        return replace(new, model=self.fused(new.model, voices, server))

    def fused(
        self, average: Tensors, voices: Sequence[Tensors], server: Server
    ) -> dict[str, Tensor]:
        """Return the average after distillation (Eq. 1)."""
        x, model, t = held(server).x, server.model, self.temperature
        mean = torch.stack([predictions(model, x, voice) for voice in voices]).mean(dim=0)
        target = torch.softmax(mean / t, dim=1)
        # From here on the resident model is the average.
        before = divergence(predictions(model, x, average), target, t)
        training = LocalTraining(
            optimizer="adam",
            lr=self.distil_lr,
            steps=self.distil_steps,
            batch_size=self.distil_batch,
        )
        if self.patience is None or len(x) < 2:
            distil(server, x, target, training, temperature=t, cosine=True)
        else:
            order = torch.randperm(len(x), generator=server.generator("held out")).to(x.device)
            kept, aside = order.tensor_split([max(1, round((1 - self.held_out) * len(x)))])
            aside = aside if len(aside) else kept
            watch = EarlyStopping(server, x[aside], target[aside], t, self.patience)
            part = x[kept], target[kept]
            distil(server, *part, training, temperature=t, cosine=True, after_step=watch)
            server.log("distil_steps", watch.steps)
            model.load(watch.best)
        after = divergence(predictions(model, x), target, t)
        server.log("distil_before", float(before))
        server.log("distil_after", float(after))
        return model.tensors()

    # Client half

    def train_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare the model, of every client its own."""
        return super().train_form(task, model, classes).singly(TEACHERS)


class EarlyStopping:
    """Stops distillation when what is held out no longer gains, and keeps the best student.

    Parameters
    ----------
    server
        Its resident model is the student.
    x, target, temperature
        What is held out: samples and teacher.
    patience
        Steps without gain after which to stop; the student is looked at ten times as often.
    """

    def __init__(
        self, server: Server, x: Tensor, target: Tensor, temperature: float, patience: int
    ) -> None:
        self.model, self.x, self.target, self.t = server.model, x, target, temperature
        self.patience, self.every = patience, max(1, patience // 10)
        self.steps = self.best_step = 0
        self.best = self.model.tensors()
        self.least = self.look()

    def look(self) -> float:
        """Return the divergence of the student now."""
        found = float(divergence(predictions(self.model, self.x), self.target, self.t))
        self.model.train()
        return found

    def __call__(self, step: int) -> bool:
        """Look, remember, and say whether to stop."""
        self.steps = step
        if step % self.every == 0:
            found = self.look()
            if found < self.least:
                self.least, self.best_step, self.best = found, step, self.model.tensors()
        return step - self.best_step >= self.patience
