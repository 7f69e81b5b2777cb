"""Per-FedAvg, in first order.

Fallah, Mokhtari, Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees: A
Model-Agnostic Meta-Learning Approach", NeurIPS 2020; first-order variant (FO), as in the comparison
of BalanceFL (IPSN 2022).

The global model w is one that is good after a step on a client's own data. A meta-step takes two
batches: w' = w − α ∇f(w; D), then w ← w − β ∇f(w'; D'), the gradient of the second batch at the
point after the first, applied at the old point (Eq. 10 with the Hessian left out). Clients send w
after some meta-steps and the server averages. For the test every client adapts the global model to
itself by further meta-steps, and each of these K models is tested.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedtail.forms import Form
from fedtail.methods.base import Method, action
from fedtail.methods.fedavg import FedAvg, LocalRun, ModelState
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Client, Payload, Server, Task
from fedtail.training import normalisable


@Method.register("per-fedavg")
class PerFedAvg(FedAvg[ModelState]):
    """Learn a model that is good after each client's own step (first-order MAML)."""

    family: ClassVar[str] = "reference"
    paper: ClassVar[str] = (
        "Fallah et al., Personalized Federated Learning with Theoretical Guarantees: A "
        "Model-Agnostic Meta-Learning Approach, NeurIPS 2020"
    )
    needs: ClassVar[tuple[str, ...]] = (
        "a step on each client's own data before its model is used",
    )

    meta_steps: int = Field(
        20, ge=1, description="meta-steps of two batches, in place of local.epochs and local.steps"
    )
    inner_lr: float = Field(0.01, ge=0, description="α: rate of the step on the first batch")
    adapt_steps: int = Field(1, ge=1, description="meta-steps that make a client's own model")

    def personal(self, s: ModelState, server: Server) -> list[Task]:
        """Have every client adapt the global model to itself."""
        payload = self.broadcast(s, server)
        return [Task(client, "adapt", payload) for client in server.clients]

    @action
    def train(self, payload: Payload, client: Client) -> Payload:
        """Do the meta-steps of a round."""
        return self.learn(payload, client, self.meta_steps)

    def adapt_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare what is sent after training."""
        return self.train_form(task, model, classes)

    @action
    def adapt(self, payload: Payload, client: Client) -> Payload:
        """Do the meta-steps that make the client's own model."""
        return self.learn(payload, client, self.adapt_steps)

    def learn(self, payload: Payload, client: Client, steps: int) -> Payload:
        """Do so many meta-steps, each with two batches that were not used before it."""
        self.load(payload, client)
        run = self.start(payload, client)
        generator, augmentation = client.generator("batches"), client.generator("augment")
        norms = run.model.batch_norms()
        run.model.train()
        batches = self.local.but(steps=2 * steps).batches(
            self.sampler, client.data.labels, generator, bool(norms)
        )
        for first, second in zip(batches, batches, strict=True):
            for index, step in ((first, self.inner_step), (second, self.step)):
                x, y = client.data.batch(index, augmentation)
                run.index = index
                with normalisable(norms, len(y)):
                    step(run, x, y)
            run.steps += 1
        self.keep_buffers(client)
        return self.reply(run)

    def inner_step(self, run: LocalRun, x: Tensor, y: Tensor) -> None:
        """W' = w − α ∇f(w; D), with w kept for `after_backward`."""
        trained = run.model.trainable()
        run.aux = {name: parameter.detach().clone() for name, parameter in trained.items()}
        gradients = torch.autograd.grad(
            self.batch_loss(run, x, y), list(trained.values()), allow_unused=True
        )
        with torch.no_grad():
            for parameter, gradient in zip(trained.values(), gradients, strict=True):
                if gradient is not None:
                    parameter.sub_(gradient, alpha=self.inner_lr)

    def after_backward(self, run: LocalRun) -> None:
        """Go back to w: the gradient was taken at w' and is applied here."""
        with torch.no_grad():
            for name, parameter in run.model.trainable().items():
                parameter.copy_(run.aux[name])
