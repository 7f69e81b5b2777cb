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
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeVar, cast

import torch
from pydantic import Field
from torch import Tensor

from fedtail.forms import Form, Like, Number, Total, renamed
from fedtail.methods.base import Asks, Method, action
from fedtail.methods.fedavg import FedAvg, LocalRun, ModelState
from fedtail.models.ensemble import Ensemble, as_member, of_member
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Client, Exchange, Payload, Server, Tensors, grouped
from fedtail.reduce import Reduced
from fedtail.training.mean_loss import mean_loss

T = TypeVar("T")


@dataclass(frozen=True)
class IFCAState(ModelState):
    """What the server keeps; `model` holds all k, by the names of an `Ensemble`.

    Attributes
    ----------
    held
        How many samples the clients have together that chose a cluster last; none before round 1.
    """

    held: Tensor | None = None


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

    def check_model(self, model: SplitModel) -> None:
        """Refuse a model off which the prior cannot be read: the first of the k."""
        super().check_model(one_of(model))

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

    def aggregate(self, s: IFCAState, found: Reduced, server: Server) -> IFCAState:
        """Average within each cluster; what clusters share, over all."""
        single = replace(server, model=one_of(server.model))
        model, memory = dict(s.model), dict(s.memory)
        for i in range(self.clusters):
            part = replace(s, model=of_member(i, s.model), memory=of_member(i, s.memory))
            part = self.server_step(part, found["model"] | found["own", i], single)
            model |= as_member(i, part.model)
            memory |= as_member(i, part.memory)
            server.log(f"clients_{i}", found.count("own", i))
        moved = found["held"]["samples"]
        held = moved if s.held is None else s.held + moved
        return replace(s, model=model, memory=memory, held=held)

    def eval_model(self, s: IFCAState) -> Tensors:
        """Return the model of the cluster with the most samples, or all k."""
        if self.test == "ensemble" and self.clusters > 1:
            return s.model
        largest = 0 if s.held is None else int(s.held.argmax())
        return of_member(largest, s.model)

    def asks(self) -> Asks:
        """Need to know who chose which cluster."""
        return super().asks()._replace(single="which cluster each client chose is told one by one")

    # Client half

    def train_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare what clusters share, what they do not, the cluster, and who moved where."""
        whole, own = super().train_form(task, one_of(model), classes), self.own_names(one_of(model))
        mine = {f"model/{name}": f"own/{name}" for name in own}
        form = renamed(whole, mine, "cluster")
        held = {"samples": Like((self.clusters,), torch.int64)}
        cluster = Number(0, self.clusters - 1, whole=True)
        return form.group("held", held, Total()).numbers(cluster=cluster)

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
        """Send the cluster's number too, and which samples moved there from where."""
        whole, i = super().reply(run), int(run.payload.scalars["cluster"])
        own, n = self.own_names(run.model), len(run.client.data)
        tensors = {
            f"own/{name}" if name in own else f"model/{name}": t
            for name, t in whole.group("model").items()
        }
        now = torch.zeros(self.clusters, dtype=torch.int64)
        now[i] = 1
        before = run.client.state.get("held", torch.zeros_like(now))
        run.client.state["held"] = n * now
        moved = {"held/samples": n * now - before}
        return Payload({**tensors, **moved}, {**whole.scalars, "cluster": i})

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
