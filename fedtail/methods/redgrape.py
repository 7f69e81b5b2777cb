"""RedGrape.

Yang, Chen, Zhou, Meng, Zhou, Sun, "Integrating Local Real Data with Global Gradient Prototypes for
Classifier Re-Balancing in Federated Long-Tailed Learning", arXiv:2301.10394, 2023.

The model is an encoder P with two heads: training sums their logits, z = (W + Ŵ) h, testing uses W
alone. Beside the gradient of its batch, W takes at every step that of a balanced data set: real
samples of the classes that the client has T of, and for each other class the prototype that the
server averaged from the clients that hold it. Ŵ meets the long tail, so that W need not.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedtail.forms import COUNT, ByClass, Form, Number
from fedtail.methods.base import Method
from fedtail.methods.fedavg import FedAvg, LocalRun, ModelState
from fedtail.models.split_model import Output, SplitModel
from fedtail.protocol import Exchange, Payload, Server, Tensors, grouped
from fedtail.reduce import Reduced
from fedtail.training import Constant, Schedule
from fedtail.training.balanced import (
    NormStatistics,
    balanced_set,
    constant_features,
    features_stay,
)
from fedtail.training.class_gradients import (
    class_gradients,
    grad_rows,
    head_gradient,
    linear_head,
)
from fedtail.training.classifier import new_classifier, second_stage
from fedtail.training.prototypes import (
    Rebalancing,
    Wire,
    as_table,
    for_wire,
    from_wire,
    no_prototypes,
    renewed,
    sum_outside,
    wire_type,
)
from fedtail.volume import Volume, form_bytes, model_bytes

HEAD = "supplementary"
SMALLEST = 1e-12  # a norm that is divided by; a gradient of zero then gives a step of zero

Stage = Literal["joint", "encoder", "head"]


@dataclass(frozen=True)
class RedGrapeState(ModelState):
    """What the server keeps.

    Attributes
    ----------
    prototypes
        G_c of every class that was ever reported: ``classes`` (L,), ascending, ``weight``
        (L, C, d) and, if the head has one, ``bias`` (L, C).
    retraining
        Whether the two-stage variant has begun its second stage.
    """

    prototypes: dict[str, Tensor] = field(default_factory=dict)
    retraining: bool = False


@Method.register("redgrape")
class RedGrape(FedAvg[RedGrapeState]):
    """Re-balances the head in local training, with real data and global gradient prototypes."""

    family: ClassVar[str] = "classifier re-balancing"
    paper: ClassVar[str] = (
        "Yang et al., Integrating Local Real Data with Global Gradient Prototypes for Classifier "
        "Re-Balancing in Federated Long-Tailed Learning, arXiv:2301.10394, 2023"
    )
    needs: ClassVar[tuple[str, ...]] = ("a linear classifier", "class gradients of each client")
    traffic: ClassVar[str] = "a second head, and a gradient of the head for each class, both ways"

    lam: float = Field(0.1, ge=0, description="λ: size of the re-balancing step, Eq. 13")
    lam_schedule: Schedule = Field(Constant(), description="λ over rounds: a factor on it")
    per_class: int = Field(
        8, ge=1, description="T: real samples of a class that has as many; else its prototype"
    )
    second_head: bool = Field(True, description="train with Ŵ; without it W is given both")
    rebalance: Literal["outside", "inside"] = Field(
        "inside",
        description="the re-balancing step: added to the gradient before clipping and momentum, or "
        "after the optimiser's step (code), where with momentum it is a part of λ only",
    )
    unreported: Literal["mean", "zero"] = Field(
        "mean",
        description="a class without prototype: the mean of the other missing ones (code), or zero",
    )
    without_prototypes: Literal["skip", "real"] = Field(
        "skip",
        description="as long as there are none at all: no re-balancing (code), or with real data",
    )
    statistics: NormStatistics = Field(
        "batch",
        description="BatchNorm of the balanced set: its own, not remembered; its own, remembered "
        "(code); or the running ones, in evaluation mode",
    )
    augmented: bool = Field(True, description="augment balanced set and prototypes (code)")
    prototypes: Literal["all", "cohort"] = Field(
        "all",
        description="what is sent to clients: the newest prototype of every class (code), or only "
        "those of the last cohort's classes",
    )
    wire: Wire = Field(
        "float32", description="precision of class gradients and prototypes on the wire"
    )
    two_stage: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="fraction of the rounds with FedAvg; then P is frozen and a new W trained",
    )

    def stage(self, round: int, rounds: int) -> Stage:
        """Return what a round trains: all at once, or one after the other (Table 4)."""
        if self.two_stage is None:
            return "joint"
        return "head" if second_stage(round, rounds, self.two_stage) else "encoder"

    def build_model(self, base: SplitModel) -> SplitModel:
        """Add Ŵ; a classifier that is not linear is refused."""
        linear_head(base.classifier)
        return base.with_head(HEAD) if self.second_head else base

    # Server half

    def init(self, model: SplitModel, server: Server) -> RedGrapeState:
        """Start without prototypes."""
        return RedGrapeState(model.tensors(), prototypes=no_prototypes(model.classifier))

    def round(self, s: RedGrapeState, server: Server) -> Exchange[RedGrapeState]:
        """One exchange; the second stage begins with a new W."""
        if self.stage(server.round, server.rounds) == "head" and not s.retraining:
            # What the server optimiser remembers would go on moving the frozen encoder.
            model = {**s.model, **new_classifier(server)}
            s = replace(s, model=model, memory={}, retraining=True)
        return (yield from super().round(s, server))

    def broadcast(self, s: RedGrapeState, server: Server) -> Payload:
        """P, W, Ŵ, and the prototype of every class that was ever reported."""
        sent = super().broadcast(s, server)
        table = for_wire(s.prototypes, self.wire)
        return replace(sent, tensors={**sent.tensors, **grouped("proto", table)})

    def aggregate(self, s: RedGrapeState, found: Reduced, server: Server) -> RedGrapeState:
        """Average P, W, Ŵ by samples (Eq. 14) and g_c over those who hold class c (Eq. 15)."""
        new = from_wire(found["grad"])
        prototypes = renewed(s.prototypes, new) if self.prototypes == "all" else new
        server.log("prototypes", len(prototypes["classes"]))
        server.log("lam", self.lam * self.lam_schedule.factor(server.round, server.rounds))
        for name in ("balanced_classes", "local_norm", "balanced_norm", "cosine"):
            server.log(name, found.mean(name))
        return replace(super().aggregate(s, found, server), prototypes=prototypes)

    def volume(self, model: SplitModel, classes: int, held: float) -> Volume:
        """Count the model both ways, down the prototypes of all classes, up those of a client's."""
        form = self.train_form(Payload(), model, classes)
        table = form_bytes(form, classes) - form_bytes(form, 0)
        return Volume(
            down=model_bytes(model) + table,
            up=form_bytes(form, held),
            less="method.wire=float16 sends half of it",
        )

    def eval_model(self, s: RedGrapeState) -> Tensors:
        """P and W: the supplementary head is left behind."""
        if not self.second_head:
            return s.model
        return {name: t for name, t in s.model.items() if not name.startswith(f"{HEAD}.")}

    # Client half

    def train_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare P, W, Ŵ, the gradients of the client's classes, and what is logged."""
        norm = Number(low=0)
        return (
            super()
            .train_form(task, model, classes)
            .group("grad", grad_rows(model.classifier, wire_type(self.wire)), ByClass(classes))
            .numbers(balanced_classes=COUNT, local_norm=norm, balanced_norm=norm, cosine=Number())
        )

    def prepare(self, run: LocalRun) -> Rebalancing:
        """Take the class gradients at the starting point, and draw the round's balanced set."""
        client, head = run.client, linear_head(run.model.classifier)
        stage = self.stage(client.round, client.rounds)
        gradients = no_prototypes(head)
        if stage != "encoder":
            draw = client.generator("prototypes") if self.augmented else None
            gradients = as_table(
                class_gradients(run.model, head, client.data, client.num_classes, draw)
            )
        index = balanced_set(client.data.labels, self.per_class, client.generator("balanced"))
        draw = client.generator("balanced augment") if self.augmented else None
        x, y = client.data.batch(index, draw)
        held, table = torch.unique(client.data.labels[index]), from_wire(run.payload.group("proto"))
        missing = sum_outside(table, held, client.num_classes, fill=self.unreported == "mean")
        active = len(table["classes"]) > 0 or self.without_prototypes == "real"
        strength = self.lam * self.lam_schedule.factor(client.round, client.rounds)
        return Rebalancing(
            gradients=gradients,
            x=x,
            y=y,
            held=len(held),
            h=run.model.features(x).detach() if features_stay(run.model) and len(y) else None,
            missing={name: t.to(client.device) for name, t in missing.items()},
            strength=strength if active and stage != "encoder" else 0.0,
        )

    def batch_loss(self, run: LocalRun, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of z = (W h + b) + (Ŵ h + b̂)."""
        stage = self.stage(run.client.round, run.client.rounds)
        if stage == "head":
            h = constant_features(run.model, x, "running")
            logits = run.model.classifier(h)
        else:
            logits, h, _ = run.model.output(x)
        if self.second_head and stage != "encoder":
            logits = logits + run.model.extra_heads[HEAD](h)
        return self.loss(Output(logits, h), y, run.context)

    def after_backward(self, run: LocalRun) -> None:
        """λ g_bal ‖g_local‖ / ‖g_bal‖ for each tensor of W, g_local not clipped yet (Eq. 13)."""
        aux: Rebalancing = run.aux
        if not aux.strength:
            return
        g_bal = self.balanced_gradient(run)
        for name, parameter in linear_head(run.model.classifier).named_parameters():
            if parameter.grad is None:
                continue
            local, norm = parameter.grad.norm(), g_bal[name].norm()
            # Nothing to go by (g_bal = 0) is no step, not a step of unknown direction.
            step = g_bal[name] * (aux.strength * local / norm.clamp_min(SMALLEST))
            if name == "weight":
                cosine = (parameter.grad * g_bal[name]).sum() / (local * norm).clamp_min(SMALLEST)
                aux.seen.append(torch.stack([local, norm, cosine]))
            if self.rebalance == "inside":
                parameter.grad += step
            else:
                aux.steps.append((parameter, step))

    def balanced_gradient(self, run: LocalRun) -> dict[str, Tensor]:
        """g_bal = (1/C) (|L_bal| ∇_W CE(D_bal) + Σ_{c ∉ L_bal} G_c), with W alone (Eq. 12)."""
        aux: Rebalancing = run.aux
        head, classes = linear_head(run.model.classifier), run.client.num_classes
        real: dict[str, Tensor] = {}
        if aux.held:
            frozen = self.stage(run.client.round, run.client.rounds) == "head"
            h = aux.h
            if h is None:
                h = constant_features(run.model, aux.x, "running" if frozen else self.statistics)
            real = head_gradient(head, h, aux.y, aux.held / classes)
        missing = {name: t / classes for name, t in aux.missing.items()}
        return {n: real[n].add_(t) if n in real else t for n, t in missing.items()}

    def after_step(self, run: LocalRun) -> None:
        """W ← W − η λ g_bal ‖g_local‖ / ‖g_bal‖, if outside momentum and clipping (Eq. 13)."""
        rate = float(run.optimizer.param_groups[0]["lr"])
        with torch.no_grad():
            for parameter, step in run.aux.steps:
                parameter.sub_(step, alpha=rate)
        run.aux.steps = []

    def reply(self, run: LocalRun) -> Payload:
        """P, W, Ŵ, and the gradients of the client's classes at the starting point."""
        sent, aux = super().reply(run), run.aux
        means = torch.stack(aux.seen).mean(dim=0).tolist() if aux.seen else [0.0] * 3
        found = {
            "balanced_classes": aux.held if aux.strength else 0,
            **dict(zip(("local_norm", "balanced_norm", "cosine"), means, strict=True)),
        }
        return replace(
            sent,
            tensors={**sent.tensors, **grouped("grad", for_wire(aux.gradients, self.wire))},
            scalars={**sent.scalars, **found},
        )
