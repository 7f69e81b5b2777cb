"""A head of each client's own, beside the global model: what FedRoD and FedLoGe have in common.

A client trains it on features that are held constant, so that nothing of the global model depends
on it. It starts at zero, is kept in the client's state, and is never sent.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor, nn

from fedtail.forms import Form, Mean, like
from fedtail.methods.base import action
from fedtail.methods.fedavg import FedAvg, M
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Client, Exchange, Payload, Server, Task, Tensors, grouped
from fedtail.training.federated_features import Head

PERSONAL = "personal"
OWN_STATE = "own/"


class PersonalHeads(FedAvg[M]):
    """FedAvg whose clients also train a head for themselves."""

    personal_heads: bool = Field(True, description="train a head for each client, which it keeps")

    @abstractmethod
    def pattern(self, model: SplitModel) -> str:
        """Return what the names of the tensors begin with that a client's own head looks like."""

    @abstractmethod
    def own(self, start: Tensors, head: Head, client: Client) -> dict[str, Tensor]:
        """Return the model that a client uses, of what it received and its own head."""

    @abstractmethod
    def tested(self, tensors: Tensors, model: SplitModel) -> dict[str, Tensor]:
        """Return the model that everybody else uses."""

    def with_personal_head(self, model: SplitModel, like: nn.Module) -> SplitModel:
        """Return the model with one more head, which is zero."""
        if not self.personal_heads:
            return model
        head = copy.deepcopy(like)
        with torch.no_grad():
            for parameter in head.parameters():
                parameter.zero_()
        return model.with_head(PERSONAL, head)

    # Server half

    def init(self, model: SplitModel, server: Server) -> M:
        """Start from the initial weights; own heads are no business of the server."""
        return self.new_state(shared_part(model.tensors()))

    def setup(self, s: M, server: Server) -> Exchange[M]:
        """Let the prior ask what it needs, with a model that is whole."""
        whole = self.starting(self.broadcast(s, server), {})
        prior = yield from self.prior.setup(whole, server)
        return replace(s, prior=prior)

    def broadcast(self, s: M, server: Server) -> Payload:
        """Send the model, and what a client's first own head looks like."""
        sent = super().broadcast(s, server)
        said = {"head": self.pattern(server.model)} if self.personal_heads else {}
        return replace(sent, scalars={**sent.scalars, **said})

    def finalize(self, s: M, server: Server) -> Exchange[M]:
        """Turn what is trained into what is tested; nobody is asked."""
        yield from ()
        return replace(s, model=self.tested(s.model, server.model))

    def personal(self, s: M, server: Server) -> list[Task]:
        """Have every client's own model tested."""
        if not self.personal_heads:
            return []
        payload = self.broadcast(s, server)
        return [Task(client, "own_model", payload) for client in server.clients]

    # Client half

    def train_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare the model without the client's own head."""
        return super().train_form(task, model, classes).without(f"model/{PERSONAL}.")

    def starting(self, payload: Payload, state: Tensors) -> dict[str, Tensor]:
        """Return the received model with the client's own head, which is zero at first."""
        start = super().starting(payload, state)
        if not self.personal_heads:
            return start
        begin = str(payload.scalars["head"])
        first = {
            f"{PERSONAL}.{name}": torch.zeros_like(start[begin + name])
            for name in ("weight", "bias")
            if begin + name in start
        }
        kept = {n.removeprefix(OWN_STATE): t for n, t in state.items() if n.startswith(OWN_STATE)}
        return {**start, **first, **kept}

    def kept(self, model: SplitModel) -> dict[str, str]:
        """Keep the own head for the client's next round."""
        own = {f"{OWN_STATE}{n}": n for n, _ in model.live() if n.startswith(f"{PERSONAL}.")}
        return {**super().kept(model), **own}

    def sent(self, payload: Payload, model: SplitModel, names: Iterable[str]) -> dict[str, str]:
        """Send all but the own head."""
        return super().sent(payload, model, (n for n in names if not n.startswith(f"{PERSONAL}.")))

    def own_model_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare a model as it is tested."""
        looks = like(self.tested(shared_part(dict(model.live())), model).items())
        return Form().group("model", looks, Mean(by=""))

    @action
    def own_model(self, payload: Payload, client: Client) -> Payload:
        """Return the model that the client uses itself."""
        start = self.starting(payload, client.state)
        head = Head(start[f"{PERSONAL}.weight"], start.get(f"{PERSONAL}.bias"))
        return Payload(grouped("model", self.own(shared_part(start), head, client)))


def shared_part(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a model's tensors without a client's own head."""
    return {name: t for name, t in tensors.items() if not name.startswith(f"{PERSONAL}.")}
