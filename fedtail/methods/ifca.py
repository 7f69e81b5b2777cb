"""IFCA: the iterative federated clustering algorithm.

Ghosh, Chung, Yin, Ramchandran, "An Efficient Framework for Clustered Federated Learning",
NeurIPS 2020.

The server keeps k models. A client of the cohort is sent all of them, takes the one with the least
loss on its own data as its cluster (Algorithm 1, line 7), trains it and sends it back with the
cluster's number. The server averages within each cluster; one that nobody chose stays as it is.
With a shared trunk the clusters have one feature extractor, averaged over all, and a head each (the
paper's weight sharing, Section 5).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, TypeVar, cast

from pydantic import Field
from torch import Tensor

from fedtail.forms import Form, Number
from fedtail.methods.base import Method, action
from fedtail.methods.fedavg import FedAvg, LocalRun, ModelState
from fedtail.models.ensemble import Ensemble, as_member, of_member
from fedtail.models.split import SplitModel
from fedtail.protocol import Client, Exchange, Payload, Server, Tensors, Update, grouped
from fedtail.training.mean_loss import mean_loss

T = TypeVar("T")


@dataclass(frozen=True)
class IFCAState(ModelState):
    """What the server keeps; `model` holds all k, by the names of an `Ensemble`.

    Attributes
    ----------
    chosen
        The cluster that each client chose last and the number of its samples, by its id.
    """

    chosen: dict[str, list[int]] = field(default_factory=dict)


@Method.register("ifca")
class IFCA(FedAvg[IFCAState]):
    """Let each client train the one of k models that fits it best."""

    family: ClassVar[str] = "grouping"
    paper: ClassVar[str] = (
        "Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS 2020"
    )
    needs: ClassVar[tuple[str, ...]] = ("which cluster each client chose",)
    traffic: ClassVar[str] = "k models down (with a shared trunk k heads), one number up"

    clusters: int = Field(2, ge=1, description="k, the number of models; 1 is FedAvg")
    shared_trunk: bool = Field(False, description="let clusters differ in their heads alone")
    test: Literal["largest", "ensemble"] = Field(
        "largest",
        description="what is tested and shipped: the model of the cluster with the most samples, "
        "or all k as an ensemble, by their mean softmax",
    )

    def build_model(self, base: SplitModel) -> SplitModel:
        """Return k models: the user's, and others that begin elsewhere."""
        return Ensemble(base, self.clusters, heads_only=self.shared_trunk)

    # Server half

    def new_state(self, tensors: dict[str, Tensor]) -> IFCAState:
        """Return the state before anyone has chosen."""
        return IFCAState(tensors)

    def setup(self, s: IFCAState, server: Server) -> Exchange[IFCAState]:
        """Let the prior ask what it needs, at the first model."""
        first = of_member(0, s.model)
        prior = yield from self.prior.setup(first, replace(server, model=one_of(server.model)))
        return replace(s, prior=prior)

    def broadcast(self, s: IFCAState, server: Server) -> Payload:
        """Return all k models; what they share, once."""
        prior = {} if s.prior is None else {"prior/counts": s.prior}
        own = self.own_names(one_of(server.model))
        models = [of_member(i, s.model) for i in range(self.clusters)]
        tensors = {**grouped("model", without(own, models[0])), **prior}
        for i, model in enumerate(models):
            tensors |= grouped(f"cluster{i}", {name: model[name] for name in model if name in own})
        return Payload(tensors)

    def own_names(self, model: SplitModel) -> frozenset[str]:
        """Return the names of what clusters do not share."""
        if not self.shared_trunk:
            return model.names()
        heads = tuple(f"{head}." for head in model.head_names)
        return frozenset(name for name in model.names() if name.startswith(heads))

    def aggregate(self, s: IFCAState, updates: list[Update], server: Server) -> IFCAState:
        """Average within each cluster; what clusters share, over all."""
        single = replace(server, model=one_of(server.model))
        own = self.own_names(single.model)
        whole = self.averaged(0, s, updates if self.shared_trunk else [], single)
        model, memory = dict(s.model), dict(s.memory)
        for i in range(self.clusters):
            mine = [u for u in updates if u.payload.scalars["cluster"] == i]
            server.log(f"clients_{i}", len(mine))
            part = self.averaged(i, s, mine, single)
            model |= as_member(i, {**part.model, **without(own, whole.model)})
            memory |= as_member(i, {**part.memory, **without(own, whole.memory)})
        chosen = {
            str(u.client): [int(u.payload.scalars["cluster"]), int(u.payload.scalars["samples"])]
            for u in updates
        }
        return replace(s, model=model, memory=memory, chosen={**s.chosen, **chosen})

    def averaged(self, i: int, s: IFCAState, updates: list[Update], server: Server) -> IFCAState:
        """Return model i and its memory after some updates; without any, as they are."""
        part = replace(s, model=of_member(i, s.model), memory=of_member(i, s.memory))
        return super().aggregate(part, updates, server) if updates else part

    def eval_model(self, s: IFCAState) -> Tensors:
        """Return the model of the cluster with the most samples, or all k."""
        if self.test == "ensemble" and self.clusters > 1:
            return s.model
        held = [0] * self.clusters
        for cluster, samples in s.chosen.values():
            held[cluster] += samples
        return of_member(held.index(max(held)), s.model)

    def not_a_sum(self) -> str:
        """Need to know who chose which cluster."""
        return "which cluster each client chose is told one by one"

    # Client half

    def train_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare one model and the cluster it is of."""
        cluster = Number(0, self.clusters - 1, whole=True)
        return super().train_form(task, one_of(model), classes).numbers(cluster=cluster)

    @action
    def train(self, payload: Payload, client: Client) -> Payload:
        """Choose the model with the least loss (the first of equals), and train it."""
        alone = replace(client, model=one_of(client.model))
        context = self.context(payload, alone)
        offers = [self.offer(i, payload) for i in range(self.clusters)]
        losses = []
        for offer in offers:
            self.load(offer, alone)
            losses.append(mean_loss(alone.model, client.data, self.loss, context))
        # A model that has diverged is nobody's best.
        known = [math.inf if math.isnan(loss) else loss for loss in losses]
        return super().train(offers[known.index(min(known))], alone)

    def offer(self, i: int, payload: Payload) -> Payload:
        """Return what a client would have received if there were only model i."""
        model = {**payload.group("model"), **payload.group(f"cluster{i}")}
        prior = grouped("prior", payload.group("prior"))
        return Payload({**grouped("model", model), **prior}, {"cluster": i})

    def reply(self, run: LocalRun) -> Payload:
        """Send the cluster's number too; the sum that the server needs is that of a cluster."""
        whole = super().reply(run)
        return Payload(whole.tensors, {**whole.scalars, **run.payload.scalars})

    @action
    def inform(self, payload: Payload, client: Client) -> Payload:
        """Answer the preliminary question of the prior, at the first model."""
        return super().inform(payload, replace(client, model=one_of(client.model)))


def one_of(model: SplitModel) -> SplitModel:
    """Return the first of the k resident models, as the place where any of them is loaded."""
    return cast(Ensemble, model).members[0]


def without(names: frozenset[str], named: Mapping[str, T]) -> dict[str, T]:
    """Return what is not among these names."""
    return {name: item for name, item in named.items() if name not in names}
