"""FedYoYo.

Yan, Li, Wu, Pang, Lu, Yan, Wang, "You Are Your Own Best Teacher: Achieving Centralized-level
Performance in Federated Learning under Heterogeneous and Long-tailed Data", ICCV 2025.

Every sample is seen twice, under weak and under strong changes. What the model says of the weak
view teaches the strong one, where it is right; both are adjusted by a class prior q, a mixture of
the client's own and a global one. The global one is made of effective numbers: how many samples of
a class a client has, less what they have in common. They are asked for before training, so a round
has two exchanges.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from fedtail.data.federation import ClientData
from fedtail.forms import Form, Like, Total
from fedtail.methods.base import Asks, Method, action
from fedtail.methods.fedavg import FedAvg, LocalRun, ModelState
from fedtail.models.split_model import Output, SplitModel
from fedtail.protocol import Client, Exchange, Payload, Server, Task
from fedtail.training.class_means import features_of
from fedtail.training.effective_numbers import (
    Effective,
    effective_numbers,
    without_leaps,
    without_outliers,
)

SMALLEST_SHARE = 1e-9
"""What is added to q^τ, so that a class that nobody holds has a logarithm."""


@dataclass(frozen=True)
class FedYoYoState(ModelState):
    """What the server keeps.

    Attributes
    ----------
    effective
        The effective numbers of all classes; none before the first round.
    """

    effective: Tensor | None = None


class Views(NamedTuple):
    """What one task needs: the strong view's data and stream, and the two priors."""

    strong: ClientData
    generator: torch.Generator
    told: Tensor
    own: Tensor


@Method.register("fedyoyo")
class FedYoYo(FedAvg[FedYoYoState]):
    """Strong views learn from weak ones, both adjusted by a local and global class prior."""

    family: ClassVar[str] = "local re-balancing"
    paper: ClassVar[str] = (
        "Yan et al., You Are Your Own Best Teacher: Achieving Centralized-level Performance in "
        "Federated Learning under Heterogeneous and Long-tailed Data, ICCV 2025"
    )
    needs: ClassVar[tuple[str, ...]] = (
        "images, for two views of a sample",
        "effective numbers of the classes, added up over the cohort",
    )
    traffic: ClassVar[str] = "the model down once more; a number for each class, both ways"

    mixture: Literal["code", "paper"] = Field(
        "code",
        description="q ← (1−γ) q + γ π^k at every batch, which is soon the local prior (code), or "
        "once a round (paper)",
    )
    gamma: float = Field(0.1, ge=0, le=1, description="γ: the local prior's part of the mixture")
    tau: float = Field(1.5, ge=0, description="τ: strength of the adjustment; 0 switches it off")
    effective: Effective = Field(
        "unbiased",
        description="how many samples of a class count: corrected for the mean that is taken off; "
        "batch by batch without it (code); or all of them, the counts",
    )
    lam: float = Field(4.0, ge=0, description="λ: weight of self-distillation (code: 4 or 1.5)")
    temperature: float = Field(1.5, gt=0, description="T of weak and strong view")
    warm_up: int = Field(50, ge=0, description="rounds in which λ grows from 0")
    auto: bool = Field(True, description="AutoAugment for the strong view")
    cutout: float = Field(
        0.5, ge=0, le=1, description="side of the strong view's cutout, as a part of the image's"
    )

    def changes_inputs(self) -> bool:
        """Change inputs for the strong view."""
        return True

    def ramp(self, round: int) -> float:
        """Return λ in one round, from 1: min(r / r_w, 1) of it, with r from 0."""
        return self.lam * (min((round - 1) / self.warm_up, 1.0) if self.warm_up else 1.0)

    # Server half

    def new_state(self, tensors: dict[str, Tensor]) -> FedYoYoState:
        """Begin without effective numbers."""
        return FedYoYoState(tensors)

    def round(self, s: FedYoYoState, server: Server) -> Exchange[FedYoYoState]:
        """Ask the cohort for effective numbers, then have it train with the prior."""
        asked, cohort = self.broadcast(s, server), server.cohort()
        found = yield [Task(client, "tell_effective", asked) for client in cohort]
        numbers = self.renewed(s.effective, found["effective"]["classes"])
        s, told = replace(s, effective=numbers), {"effective/classes": numbers}
        asked = replace(asked, tensors={**asked.tensors, **told})
        found = yield [Task(client, "train", asked) for client in cohort]
        return self.aggregate(s, found, server)

    def renewed(self, old: Tensor | None, told: Tensor) -> Tensor:
        """Return e = 1 + Σ e^k, or from round 2 on nine tenths of the old ones and one of these."""
        new = 1 + told
        if old is None:
            return without_outliers(new) if self.effective == "code" else new
        mixed = 0.9 * old + 0.1 * new
        return without_leaps(old, mixed) if self.effective == "code" else mixed

    def asks(self) -> Asks:
        """Ask the cohort twice."""
        return super().asks()._replace(numbers="effective numbers are sent as they are")

    # Client half

    def tell_effective_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare one number a class."""
        return Form().group("effective", {"classes": Like((classes,), low=0)}, Total())

    @action
    def tell_effective(self, payload: Payload, client: Client) -> Payload:
        """Send how many samples of each class count, by the features of the received model."""
        self.load(payload, client)
        h = features_of(client.model, client.data)
        labels, batch = client.data.labels, self.local.batch_size
        found = effective_numbers(h, labels, client.num_classes, self.effective, batch)
        return Payload({"effective/classes": found})

    def prepare(self, run: LocalRun) -> Views:
        """Make the strong view, and the priors as shares."""
        data, device = run.client.data, run.client.device
        side = min(data.samples.x.shape[-2:]) if len(data.samples.x.shape) == 4 else 0
        strong = data.augment.but(auto=self.auto, cutout=int(self.cutout * side))
        told = run.payload.tensors["effective/classes"].to(device)
        return Views(
            replace(data, augment=strong),
            run.client.generator("strong view"),
            told / told.sum(),
            run.context.prior / run.context.prior.sum(),
        )

    def shares(self, views: Views, step: int) -> Tensor:
        """Return q at a batch, from 1."""
        kept = (1 - self.gamma) ** (step if self.mixture == "code" else 1)
        return kept * views.told + (1 - kept) * views.own

    def batch_loss(self, run: LocalRun, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of both views, and λ times what the strong one has to learn."""
        views: Views = run.aux
        again, _ = views.strong.batch(run.index, views.generator)
        output = run.model.output(torch.cat([x, again]))
        q = self.shares(views, run.steps + 1)
        z = output.logits + (q**self.tau + SMALLEST_SHARE).log()
        both = self.loss(Output(z, output.features), torch.cat([y, y]), run.context)
        weak, strong = z.chunk(2)
        return both + self.ramp(run.client.round) * taught_by_itself(
            weak, strong, y, self.temperature
        )


def taught_by_itself(weak: Tensor, strong: Tensor, y: Tensor, temperature: float) -> Tensor:
    """Return KL(softmax(weak/T) ‖ softmax(strong/T)), the mean over what `weak` gets right.

    The weak view is held constant. Where it gets nothing right there is nothing to learn.
    """
    right = weak.argmax(dim=1) == y
    q = (weak.detach() / temperature).softmax(dim=1)
    log_p = (strong / temperature).log_softmax(dim=1)
    each = functional.kl_div(log_p, q, reduction="none").sum(dim=1)
    return torch.where(right, each, 0.0).sum() / right.sum().clamp(min=1)
