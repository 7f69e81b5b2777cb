"""GBME: global balanced multi-expert.

Zeng, Liu, Liu, Shen, Liu, Wu, "Global Balanced Experts for Federated Long-Tailed Learning",
ICCV 2023.

The model has one trunk and M experts, and its logits are the mean of theirs. Before round 1 the
clients' first classifier updates give a proxy of the global class distribution, Π (Eq. 4 and 5, see
`ProxyPrior`), and clients are sorted by how much their own looks like it (Eq. 6) into M groups, one
an expert. In a round each expert is trained, with the trunk, by clients that are mostly of its
group, under the balanced softmax of Π (Eq. 7).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import ClassVar, Literal, Self, cast

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional

from fedtail.errors import FedtailError
from fedtail.forms import Form, Number, renamed
from fedtail.losses import BalancedSoftmax, LocalLoss, LossContext
from fedtail.methods.base import Asks, Method, action
from fedtail.methods.fedavg import FedAvg, ModelState
from fedtail.models.experts import ExpertModel, with_experts
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Client, ClientId, Exchange, Payload, Server, Task, Tensors
from fedtail.reduce import Reduced
from fedtail.training import ClassPrior, ProxyPrior
from fedtail.training.priors import counts_form

LABELS = "grouping = 'label' reads each client's own class counts"


@dataclass(frozen=True)
class GBMEState(ModelState):
    """What the server keeps.

    Attributes
    ----------
    groups
        The clients of each expert's group.
    omega
        Ω^k, one row a client, if the prior is a proxy.
    """

    groups: list[list[ClientId]] = field(default_factory=list)
    omega: Tensor | None = None


@Method.register("gbme")
class GBME(FedAvg[GBMEState]):
    """Experts for groups of similar clients, balanced by a proxy of the global prior."""

    family: ClassVar[str] = "ensemble"
    paper: ClassVar[str] = (
        "Zeng et al., Global Balanced Experts for Federated Long-Tailed Learning, ICCV 2023"
    )
    needs: ClassVar[tuple[str, ...]] = ("one preliminary exchange with every client",)
    traffic: ClassVar[str] = (
        "M cohorts a round; M experts down, the trunk and one expert up; once, the model down to "
        "every client and C numbers up"
    )

    trains: ClassVar[tuple[str, ...]] = ("train", "train_expert")

    loss: LocalLoss = Field(BalancedSoftmax(), description="of the logits and Π (Eq. 7)")
    prior: ClassPrior = Field(ProxyPrior(), description="where Π comes from (Eq. 4 and 5)")
    experts: int = Field(3, ge=1, description="number of experts, M; 1 keeps the model as it is")
    split_at: str = Field(
        "", description="child that the experts begin with; by default the middle weighted one"
    )
    cosine: bool = Field(False, description="give the experts cosine heads, as the code does")
    alpha: float = Field(0.6, ge=0, le=1, description="share of a cohort from the expert's group")
    grouping: Literal["gpi", "label", "random"] = Field(
        "gpi",
        description="clients by their likeness to Π; by that of their class counts, which they "
        "then reveal; or by chance (Table 10)",
    )
    rest: Literal["all", "others"] = Field(
        "all",
        description="who the rest of a cohort is drawn from: everybody (paper), or the clients of "
        "other groups",
    )
    per_expert: bool = Field(
        True,
        description="sum the losses of the trained experts' own logits, as the code does; false: "
        "the loss of the mean logits (Eq. 7)",
    )
    times_experts: bool = Field(
        True,
        description="with per_expert=false: multiply the loss by M, so that an expert has the "
        "gradient of a single model; false is Eq. 7 as printed",
    )
    joint: float = Field(
        0.0, ge=0, le=1, description="share of the rounds that train all experts together first"
    )

    @model_validator(mode="after")
    def _known_clients(self) -> Self:
        proxy = isinstance(self.prior, ProxyPrior)
        if self.grouping == "gpi" and self.experts > 1 and not proxy:
            raise FedtailError(
                f"grouping = 'gpi' needs a proxy prior, not '{self.prior.name}';"
                " 'label' and 'random' go with any"
            )
        return self

    def build_model(self, base: SplitModel) -> SplitModel:
        """Return the trunk and M experts; a model that has experts already is taken as it is."""
        return with_experts(base, self.experts, self.split_at, cosine=self.cosine)

    # Server half

    def new_state(self, tensors: dict[str, Tensor]) -> GBMEState:
        """Return the state before anything is known of the clients."""
        return GBMEState(tensors)

    def setup(self, s: GBMEState, server: Server) -> Exchange[GBMEState]:
        """Learn Π, then group the clients."""
        likeness = torch.zeros(len(server.clients))
        if isinstance(self.prior, ProxyPrior):
            survey = yield from self.prior.survey(s.model, server)
            s = replace(s, prior=survey.counts, omega=survey.omega)
            likeness = similarity(survey.omega.clamp(min=0), survey.gpi)
        else:
            s = yield from super().setup(s, server)
        if self.grouping == "label":
            found = yield [Task(client, "tell_labels", Payload()) for client in server.clients]
            told = {u.client: u.payload.tensors["counts/classes"].float() for u in found.each}
            absent = torch.zeros(server.num_classes)
            counts = torch.stack([told.get(client, absent) for client in server.clients])
            likeness = similarity(counts, counts.sum(dim=0))
        chance = torch.rand(len(server.clients), generator=server.generator("groups"))
        order = chance if self.grouping == "random" else likeness
        groups = cut_into_groups(order, server.clients, self.experts)
        for i, group in enumerate(groups):
            members = set(group)
            inside = [float(likeness[k]) for k, c in enumerate(server.clients) if c in members]
            server.log(f"similarity_{i}", sum(inside) / max(len(inside), 1))
        return replace(s, groups=groups)

    def round(self, s: GBMEState, server: Server) -> Exchange[GBMEState]:
        """Train every expert with a cohort of its own; all start from the same model."""
        if self.experts == 1 or server.round <= self.joint * server.rounds + 1e-9:
            return (yield from super().round(s, server))
        sent = self.broadcast(s, server)
        payloads = [Payload(sent.tensors, {"expert": i}) for i in range(self.experts)]
        found = yield [
            Task(client, "train_expert", payload)
            for i, payload in enumerate(payloads)
            for client in self.draw(i, s.groups, server)
        ]
        return self.aggregate(s, found, server)

    def draw(self, i: int, groups: Sequence[Sequence[ClientId]], server: Server) -> list[ClientId]:
        """Return R distinct clients: αR of group i, the rest of everybody, or of other groups."""
        apart = [np.asarray(g, dtype=np.int64) for j, g in enumerate(groups) if j != i]
        others: list[ClientId] = np.sort(np.concatenate(apart)).tolist()
        size = min(server.per_round, len(server.clients))
        own = min(math.floor(self.alpha * size + 0.5), len(groups[i]))
        if self.rest == "others":
            own = max(own, size - len(others))
        inside = server.cohort(own, groups[i], f"expert {i}: group")
        if self.rest == "all":
            others = sorted({*server.clients} - {*inside})
        return sorted(inside + server.cohort(size - own, others, f"expert {i}: others"))

    def aggregate(self, s: GBMEState, found: Reduced, server: Server) -> GBMEState:
        """Average the trunk over all uploads, expert i over its own, by sample counts."""
        new, uploads = found["model"], [found.count("expert", i) for i in range(self.experts)]
        for i, count in enumerate(uploads if any(uploads) else []):
            server.log(f"uploads_{i}", count)
            names = shared_names(cast(ExpertModel, server.model), i)
            new |= {names[short]: t for short, t in found["expert", i].items()}
        return self.server_step(s, new, server)

    def asks(self) -> Asks:
        """Ask M cohorts a round; look at clients one by one to group them, unless with noise."""
        single = super().asks().single
        if isinstance(self.prior, ProxyPrior) and not self.prior.noisy:
            single = "its prior reads each client's own index; gbme-p sends it with noise"
        if self.grouping == "label":
            single = LABELS
        drawn: Literal["cohort", "own"] = "cohort" if self.experts == 1 else "own"
        return super().asks()._replace(round=drawn, single=single)

    # Client half

    def tell_labels_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare the class counts, of every client its own."""
        return counts_form(classes).singly(LABELS)

    def train_expert_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare the trunk and the expert that was asked for."""
        i, whole = int(task.scalars["expert"]), self.train_form(task, model, classes)
        names = shared_names(cast(ExpertModel, model), i)
        own = {f"model/{name}": f"expert/{short}" for short, name in names.items()}
        kept = [n for n in whole.tensors if n.startswith("model/trunk.") or n in own]
        part = replace(
            whole,
            tensors={n: whole.tensors[n] for n in kept},
            how={n: whole.how[n] for n in kept},
        )
        return renamed(part, own, "expert").numbers(expert=Number(i, i, whole=True))

    @action
    def tell_labels(self, payload: Payload, client: Client) -> Payload:
        """Reveal the class counts, for grouping by label."""
        return Payload({"counts/classes": client.counts})

    @action
    def train_expert(self, payload: Payload, client: Client) -> Payload:
        """Train the trunk and one expert; the others take part, but do not move."""
        with self.moving(payload, client.model):
            return self.train(payload, client)

    @contextmanager
    def moving(self, payload: Payload, model: SplitModel) -> Iterator[None]:
        """Let the trunk move, and the expert that the task is about."""
        if "expert" not in payload.scalars:
            yield
            return
        of_experts = cast(ExpertModel, model)
        of_experts.train_only(int(payload.scalars["expert"]))
        try:
            yield
        finally:
            of_experts.train_only(None)

    def at_start(self, payload: Payload, client: Client, context: LossContext) -> int | None:
        """Return which expert the task is about, if one."""
        only = payload.scalars.get("expert")
        return None if only is None else int(only)

    def local_loss(
        self, model: SplitModel, x: Tensor, y: Tensor, context: LossContext, aux: int | None
    ) -> Tensor:
        """M CE(mean logits + log π, y) (Eq. 7 times M), or the sum of the trained experts' own."""
        if aux is not None and self.per_expert and not self.loss.reads_features:
            # The others neither learn nor count: what they say would be multiplied by zero.
            return self.loss(cast(ExpertModel, model).output_of(aux, x), y, context)
        output = model.output(x)
        if output.experts is None:
            return self.loss(output, y, context)
        if not self.per_expert:
            factor = len(output.experts) if self.times_experts else 1
            return factor * self.loss(output, y, context)
        each = output.experts if aux is None else output.experts[aux].unsqueeze(0)
        losses = [self.loss(output._replace(logits=z, experts=None), y, context) for z in each]
        return torch.stack(losses).sum()

    def sent(self, payload: Payload, model: SplitModel, names: Iterable[str]) -> dict[str, str]:
        """Return the trunk and the trained expert, under names that all experts share."""
        if "expert" not in payload.scalars:
            return super().sent(payload, model, names)
        own = shared_names(cast(ExpertModel, model), int(payload.scalars["expert"]))
        return {
            **{f"model/{name}": name for name in names if name.startswith("trunk.")},
            **{f"expert/{short}": name for short, name in own.items()},
        }

    def extras(self, client: Client, steps: int, tensors: Tensors, aux: int | None) -> Payload:
        """Say which expert it is."""
        more = super().extras(client, steps, tensors, aux)
        return more if aux is None else replace(more, scalars={**more.scalars, "expert": aux})


def similarity(vectors: Tensor, whole: Tensor) -> Tensor:
    """s_k = cos(Ω^k, Π) (Eq. 6); −1, less than any, for a client of which nothing is known."""
    cosine = functional.cosine_similarity(vectors, whole.unsqueeze(0), dim=1, eps=1e-30)
    return torch.where(vectors.abs().sum(dim=1) > 0, cosine, -1.0)


def cut_into_groups(
    likeness: Tensor, clients: Sequence[ClientId], count: int
) -> list[list[ClientId]]:
    """Sort clients by falling likeness and cut them into groups of neighbours.

    Group i is the slice from ⌊K i / M⌋ to ⌊K (i + 1) / M⌋; clients that are alike stay in order.
    """
    order = torch.argsort(likeness, descending=True, stable=True).tolist()
    ends = [len(clients) * i // count for i in range(count + 1)]
    return [sorted(clients[k] for k in order[start:stop]) for start, stop in pairwise(ends)]


def shared_names(model: ExpertModel, index: int) -> dict[str, str]:
    """Return an expert's tensors by names without its number, as they travel."""
    return {name.replace(f".{index}.", ".", 1): name for name in sorted(model.expert_names(index))}
