"""FedBE: Bayesian model ensemble.

Chen, Chao, "FedBE: Making Bayesian Model Ensemble Applicable to Federated Learning", ICLR 2021.

The uploads of a round are taken for samples of a distribution of global models: a diagonal
Gaussian, or convex combinations with Dirichlet weights. The server draws more models from it. The
mean prediction of all of them, the uploads and their average, made sharper, is distilled into the
average on unlabelled samples, with stochastic weight averaging (Algorithm 1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.optim.swa_utils import update_bn

from fedtail.forms import Form
from fedtail.methods.base import Asks, Method
from fedtail.methods.fedavg import FedAvg, ModelState
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Payload, Server, Tensors
from fedtail.reduce import Reduced
from fedtail.rng import contained
from fedtail.training import LocalTraining, Shuffled, weighted_mean
from fedtail.training.distillation import distil, divergence, held, predictions

Models = Sequence[dict[str, Tensor]]


DRAWN = "it draws models from all clients' own"


@Method.register("fedbe")
class FedBE(FedAvg[ModelState]):
    """Distils an ensemble of models drawn around the uploads, on unlabelled server data."""

    family: ClassVar[str] = "server data"
    paper: ClassVar[str] = (
        "Chen and Chao, FedBE: Making Bayesian Model Ensemble Applicable to Federated Learning, "
        "ICLR 2021"
    )
    needs: ClassVar[tuple[str, ...]] = ("unlabelled server data",)
    server_data: ClassVar[Literal["none", "labelled", "unlabelled"]] = "unlabelled"

    models: int = Field(10, ge=0, description="models that are drawn beside the uploads")
    posterior: Literal["gaussian", "dirichlet"] = Field(
        "gaussian", description="what they are drawn from"
    )
    normalised: bool = Field(
        True, description="gaussian: of updates scaled to norm 1, tensor by tensor (code)"
    )
    spread: float = Field(0.1, ge=0, description="gaussian: factor of the standard deviation")
    least_variance: float = Field(1e-5, ge=0, description="gaussian: no variance is below it")
    concentration: float = Field(1.0, gt=0, description="dirichlet: α of each upload")
    sharpness: float = Field(
        0.5, gt=0, le=1, description="temperature that sharpens the mean prediction; 1 leaves it"
    )
    distil_epochs: int = Field(20, ge=0, description="passes over the server data; 0 is FedAvg")
    distil_lr: float = Field(1e-3, gt=0, description="rate of distillation, by SGD")
    distil_momentum: float = Field(0.9, ge=0, lt=1, description="its momentum")
    distil_decay: float = Field(1e-5, ge=0, description="its weight decay")
    distil_batch: int = Field(128, ge=1, description="its batch size")
    swa_start: float = Field(
        0.3, ge=0, le=1, description="fraction of the steps before weights are averaged; 1: never"
    )
    swa_every: int = Field(25, ge=1, description="steps between two weights that are averaged")

    def asks(self) -> Asks:
        """Need every client's own model."""
        return super().asks()._replace(single=DRAWN)

    def aggregate(self, s: ModelState, found: Reduced, server: Server) -> ModelState:
        """Average, draw, and distil all of them into the average."""
        new = super().aggregate(s, found, server)
        uploads = [u.payload.group("model") for u in found.each if u.payload.scalars["samples"]]
        if not self.distil_epochs or not uploads:
            return new
        x, model = held(server).x, server.model
        ensemble = [new.model, *uploads, *self.draw(s.model, new.model, uploads, server)]
        each = [torch.softmax(predictions(model, x, w), dim=1) for w in ensemble]
        target = sharpened(torch.stack(each).mean(dim=0), self.sharpness)
        server.log("distil_before", float(divergence(predictions(model, x, new.model), target)))
        student = self.student(x, target, server)
        server.log("distil_after", float(divergence(predictions(model, x, student), target)))
        return replace(new, model=student)

    def draw(
        self, old: Tensors, average: Tensors, uploads: Models, server: Server
    ) -> Iterator[dict[str, Tensor]]:
        """Yield models from the distribution around the uploads."""
        if self.posterior == "dirichlet":
            rng = server.rng("dirichlet")
            for _ in range(self.models):
                share = rng.dirichlet(np.full(len(uploads), self.concentration))
                yield weighted_mean(uploads, share.tolist())
            return
        generator = server.generator("gaussian")
        parameters = server.model.parameter_names()
        fits = {n: self.fit([u[n] - old[n] for u in uploads]) for n in average if n in parameters}
        for _ in range(self.models):
            drawn = dict(average)  # buffers: a variance that is drawn could be negative
            for name, (mean, deviation, length) in fits.items():
                noise = torch.randn(mean.shape, generator=generator)
                step = mean + deviation * noise * self.spread
                drawn[name] = (old[name] + step * length).to(old[name].dtype)
            yield drawn

    def fit(self, updates: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return mean and deviation of the updates w_k − w of one tensor, and the mean length.

        With `normalised`, they are those of (w_k − w) / ‖w_k − w‖.
        """
        stack = torch.stack([update.double() for update in updates])
        norms = stack.flatten(1).norm(dim=1)
        lengths = norms if self.normalised else torch.ones_like(norms)
        shape = [-1] + [1] * (stack.ndim - 1)
        # An update of zeros has no direction.
        unit = stack / torch.where(lengths > 0, lengths, 1.0).reshape(shape)
        variance = unit.var(dim=0, correction=0).clamp(min=self.least_variance)
        return unit.mean(dim=0), variance.sqrt(), lengths.mean()

    def student(self, x: Tensor, target: Tensor, server: Server) -> dict[str, Tensor]:
        """Return the resident model, which holds the average, after distillation with SWA."""
        model = server.model
        training = LocalTraining(
            lr=self.distil_lr,
            momentum=self.distil_momentum,
            weight_decay=self.distil_decay,
            epochs=self.distil_epochs,
            batch_size=self.distil_batch,
        )
        steps = -(-len(x) // self.distil_batch) * self.distil_epochs
        swa = WeightAverage(model, self.swa_start * steps, self.swa_every)
        distil(server, x, target, training, after_step=swa)
        if swa.count:
            swa.load()
            batches = training.but(epochs=1).batches(
                Shuffled(), torch.zeros(len(x)), server.generator("statistics"), pairs=True
            )
            if len(x) > 1:
                # The statistics of the averaged weights are nobody's: they are taken anew.
                with contained(server.generator("statistics").initial_seed(), server.device):
                    update_bn((x[index.to(x.device)] for index in batches), model)
        return model.tensors()

    # Client half

    def train_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare the model, of every client its own."""
        return super().train_form(task, model, classes).singly(DRAWN)


class WeightAverage:
    """Stochastic weight averaging: the running mean of what a model's parameters were.

    Parameters
    ----------
    model
        Whose parameters.
    start
        Steps that are not averaged.
    every
        Of the others, each so many-th is.
    """

    def __init__(self, model: SplitModel, start: float, every: int) -> None:
        self.model, self.start, self.every = model, start, every
        self.count = 0
        self.mean: dict[str, Tensor] = {}

    def __call__(self, step: int) -> bool:
        """Take the parameters in, if it is time; never stop training."""
        if step > self.start and step % self.every == 0:
            self.count += 1
            for name, parameter in self.model.trainable().items():
                now = parameter.detach().cpu().double()
                old = self.mean.get(name, now)
                self.mean[name] = old + (now - old) / self.count
        return False

    def load(self) -> None:
        """Give the model the mean."""
        with torch.no_grad():
            for name, parameter in self.model.trainable().items():
                parameter.copy_(self.mean[name])


def sharpened(q: Tensor, temperature: float) -> Tensor:
    """q_c^(1/T) / Σ q^(1/T)."""
    return torch.softmax(q.log() / temperature, dim=1)
