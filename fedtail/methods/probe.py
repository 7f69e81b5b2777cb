"""The probe: a few rounds of FedAvg, with sums that tell what is wrong with a federation.

It is what `fedtail doctor` runs (`fedtail.diagnosis`). Clients train as in McMahan et al.,
"Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017, and send
a few numbers more; after the last round they are asked for what a closed-form head needs, and then
count how it and the trained one do. The clients of a round are asked in groups, one exchange each:
a server that is shown sums alone still sees how much the groups differ, and so how sure a number
is. What was added up is logged as JSON, and nothing is decided here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from fedtail.diagnosis.parts import (
    ASIDE,
    UNIT,
    Spread,
    Told,
    as_summands,
    changes,
    classifier_facts,
    cosine,
    drift,
    head_scores,
    right,
    sheet,
    spaced,
    surest,
)
from fedtail.forms import Form, Like, Total
from fedtail.methods.base import Asks, Method, action
from fedtail.methods.fedavg import FedAvg, ModelState
from fedtail.models.split_model import SplitModel, load_tested
from fedtail.protocol import Client, ClientId, Exchange, Payload, Server, Task, Tensors, grouped
from fedtail.reduce import Reduced
from fedtail.training.closed_heads import LDA, frame
from fedtail.training.distillation import divergence
from fedtail.training.feature_sums import local_features
from fedtail.validation import HELD_OUT, count

SMALLEST_GROUP = 2
"""The clients of a group: a sum of one would be its update."""
COMPARED_SAMPLES = 256
"""Samples of a client whose answers before and after training are compared."""
WIDE_FEATURES = 1024
"""Features beyond which a sketch of their second moments is asked for."""
STRENGTHS = (0.0, 0.5, 1.0)
"""τ: how much of the log of the class shares is taken off the trained head's logits."""


@dataclass(frozen=True)
class ProbeState(ModelState):
    """What the server keeps.

    Attributes
    ----------
    step
        How the last round changed the model.
    """

    step: dict[str, Tensor] = field(default_factory=dict)


@Method.register("probe")
class Probe(FedAvg[ProbeState]):
    """FedAvg with sums that tell what is wrong with a federation: what `fedtail doctor` runs."""

    family: ClassVar[str] = "diagnosis"
    paper: ClassVar[str] = "none: FedAvg, and readings of this library's own"
    needs: ClassVar[tuple[str, ...]] = (
        "class counts, feature sums and sums of their products, over all clients",
    )
    traffic: ClassVar[str] = (
        "4 C + 10 numbers up; after the last round what `closed-form` sends, and 9 C + 4 numbers up"
    )

    groups: int = Field(8, ge=1, description="in how many groups the clients of a round are asked")
    asked: int = Field(24, ge=2, description="clients of a round, if it would have fewer")

    def build_model(self, base: SplitModel) -> SplitModel:
        """Refuse a classifier whose features have no width."""
        _ = base.feature_dim
        return base

    def asks(self) -> Asks:
        """Ask groups of clients; counts and moments of features are not clipped."""
        numbers = "counts, losses and second moments of features are sent as they are"
        return super().asks()._replace(round="own", numbers=numbers)

    # Server half

    def new_state(self, tensors: dict[str, Tensor]) -> ProbeState:
        """Return the state before the first round."""
        return ProbeState(tensors)

    def round(self, s: ProbeState, server: Server) -> Exchange[ProbeState]:
        """One exchange a group; after the last round the readings."""
        chosen = server.cohort(max(server.per_round, self.asked))
        groups = self.split(chosen, server)
        payload, found = self.broadcast(s, server), []
        for group in groups:
            found.append((yield [Task(client, "train", payload) for client in group]))
        new = self.aggregate_groups(s, found, server)
        server.log("clients", len(chosen))
        server.log("groups", json.dumps([sheet(f, "told", Told._fields) for f in found]))
        server.log("drift", json.dumps(drift(s.model, found, server.model)))
        server.log("head", json.dumps(classifier_facts(s.model, new.model, server.model)))
        server.log("cosine", cosine(s.step, new.step))
        if server.round == server.rounds:
            yield from self.examination(new.model, chosen, groups, server)
        return new

    def split(self, chosen: Sequence[ClientId], server: Server) -> list[list[ClientId]]:
        """Share clients out to groups at random."""
        mixed = server.rng("groups").permutation(np.array(chosen))
        parts = max(1, min(self.groups, len(mixed) // SMALLEST_GROUP))
        return [sorted(part.tolist()) for part in np.array_split(mixed, parts)]

    def aggregate_groups(
        self, s: ProbeState, found: Sequence[Reduced], server: Server
    ) -> ProbeState:
        """Average the means of groups by their samples: what FedAvg does."""
        means = [(f.total("samples"), f["model"]) for f in found if f["model"]]
        if not means:
            return s
        weights = torch.tensor([n for n, _ in means], dtype=torch.float64)
        mean = {}
        for name, t in means[0][1].items():
            each = torch.stack([m[name] for _, m in means])
            if t.is_floating_point():
                shares = (weights / weights.sum()).view(-1, *[1] * t.ndim)
                mean[name] = (each.double() * shares).sum(0).to(t.dtype)
            else:  # step counters
                mean[name] = each.amax(0)
        new = self.server_step(s, mean, server)
        moved = server.model.parameter_names() & mean.keys()
        return replace(new, step={n: new.model[n] - s.model[n] for n in sorted(moved)})

    def examination(
        self,
        model: Tensors,
        chosen: Sequence[ClientId],
        groups: Sequence[Sequence[ClientId]],
        server: Server,
    ) -> Exchange[None]:
        """Compute a head from sums, and have it and the trained one counted."""
        network, asked = server.model, replace(server, clients=chosen)
        closed = LDA(rank=256 if network.feature_dim > WIDE_FEATURES else 0)
        sums = yield from closed.ask(model, network, asked)
        if not bool(sums.held.any()):
            return
        head, scale = closed.head(sums), frame(sums, True, True)[1]
        means = sums.sums / sums.counts.clamp(min=1)[:, None]
        shares = closed.but(balance=False).head(sums).bias
        named = {**head._asdict(), "plain": shares, "means": means, "scale": scale}
        told: Tensors = {name: t.float() for name, t in named.items()}
        told = {**told, "counts": sums.counts}
        question = Payload({**grouped("model", model), **grouped("exam", told)})
        found = []
        for group in groups:
            found.append((yield [Task(client, "examine", question) for client in group]))
        exams = [sheet(f, "exam") | {n: sheet(f, n, k) for n, k in ASIDE.items()} for f in found]
        server.log("exams", json.dumps(exams))

    # Client half

    def train_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare FedAvg's answer, counts by class, and the numbers of `Told`."""
        count = Like((classes,), torch.int64, low=0, counted=True)
        looks = dict.fromkeys(("counts", "right", "samples"), count)
        looks["held"] = Like((classes,), torch.int64, low=0, high=1)
        looks["numbers"] = Like((len(Told._fields),), torch.float64, low=0)
        return super().train_form(task, model, classes).group("told", looks, Total())

    @action
    def train(self, payload: Payload, client: Client) -> Payload:
        """Train as FedAvg does, and tell how far it went and what was forgotten."""
        before = self.answers(payload.group("model"), client)
        counted = count(payload.group("model"), client).group(HELD_OUT)
        answer = super().train(payload, client)
        after = self.answers(answer.group("model"), client)
        told = {
            "counts": client.counts,
            "right": counted["right"],
            "samples": counted["samples"],
            "held": (client.counts > 0).long(),
            "numbers": as_summands(self.told(payload, answer, client, before, after)),
        }
        return replace(answer, tensors={**answer.tensors, **grouped("told", told)})

    def answers(self, model: Tensors, client: Client) -> Tensor:
        """Return the logits of a model for a few of a client's samples, evenly spread."""
        network = load_tested(model, client.model, client.base or client.model)
        size = min(COMPARED_SAMPLES, len(client.data))
        if not size:
            return torch.zeros(0, client.num_classes, dtype=torch.float64)
        with torch.inference_mode():
            logits: Tensor = network(client.data.batch(spaced(len(client.data), size))[0])
        return logits.cpu().double()

    def told(
        self, payload: Payload, answer: Payload, client: Client, before: Tensor, after: Tensor
    ) -> Told:
        """Return what the client adds to the numbers of a round."""
        n, labels = len(client.data) / UNIT, client.data.labels
        y = labels[spaced(len(labels), len(before))]
        head, body = changes(payload.group("model"), answer.group("model"), client.model)
        lacks = client.counts == 0
        forgets = int(lacks.sum()) > 1 and len(before) > 0
        kept = before[:, lacks].softmax(1)
        squares = float(client.counts.double().square().sum())
        return Told(
            body=n * body,
            body2=n * n * body,
            head=n * head,
            head2=n * n * head,
            samples2=n * n,
            own=squares / max(1, len(client.data)) / UNIT,
            loss=float(functional.cross_entropy(before, y, reduction="sum")),
            seen=float(len(y)),
            forgotten=float(divergence(after[:, lacks], kept)) if forgets else 0.0,
            lacking=float(forgets),
        )

    def examine_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare counts by class of two heads, and how features spread."""
        count = Like((classes,), torch.int64, low=0, counted=True)
        looks = dict.fromkeys(("samples", "fitted", "counts", "closed", "plain"), count)
        looks |= {f"trained {tau:g}": count for tau in STRENGTHS}
        looks["squares"] = Like((classes,), torch.float64, low=0)
        looks["held"] = Like((classes,), torch.int64, low=0, high=1)
        form = Form().group("exam", looks, Total())
        for name, fields in ASIDE.items():
            numbers = Like((len(fields),), torch.float64, low=0)
            form = form.group(name, {"numbers": numbers}, Total())
        return form

    @action
    def examine(self, payload: Payload, client: Client) -> Payload:
        """Count how two heads do on what is held out, and add up how features spread."""
        network = load_tested(payload.group("model"), client.model, client.base or client.model)
        told, classes = payload.group("exam"), client.num_classes
        prior = told["counts"].clamp(min=1).double().log()
        y, trained, closed = head_scores(network, client.data.held_out, told)
        exam = {
            "samples": torch.bincount(y, minlength=classes),
            "closed": right(closed, y, classes),
            "plain": right(closed + (told["plain"] - told["bias"]), y, classes),
            **{f"trained {tau:g}": right(trained - tau * prior, y, classes) for tau in STRENGTHS},
            "counts": client.counts,
            "fitted": torch.zeros(classes, dtype=torch.int64),
            "squares": client.counts.double().square(),
            "held": (client.counts > 0).long(),
        }
        sums, total = torch.zeros_like(told["means"]).double(), 0.0
        for h, labels in local_features(network, client.data):
            scores = functional.linear(h, told["weight"].double(), told["bias"].double())
            exam["fitted"] += right(scores, labels, classes)
            z = (h - told["means"][labels].double()) / told["scale"].double()
            sums.index_add_(0, labels, z)
            total += float(z.square().sum())
        between = float((sums.square().sum(1) / client.counts.clamp(min=1)).sum())
        parts = {"exam": exam, "spread": {"numbers": as_summands(Spread(total, between))}}
        parts["surest"] = {"numbers": as_summands(surest(closed, y))}
        return Payload(
            {k: t for name, part in parts.items() for k, t in grouped(name, part).items()}
        )
