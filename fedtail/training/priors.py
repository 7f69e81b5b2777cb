"""Where the class prior π comes from that a prior-based loss uses.

Local: each client's own counts, nothing is sent. Global: every client reports its counts once, in
the preliminary exchange, which reveals them to the server (or only their sum, if sums are secure).
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedtail.config import Component, Registry
from fedtail.forms import Form, Like, Total
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Client, Exchange, Payload, Server, Task, Tensors
from fedtail.training.local import LocalTraining


class ClassPrior(Component):
    """Class counts up to a factor, as seen by a client."""

    registry: ClassVar[Registry[ClassPrior]] = Registry("prior")

    def check(self, model: SplitModel) -> None:
        """Refuse a model off which it cannot be read, before work starts; by default none."""

    @property
    def exchanges(self) -> int:
        """How many exchanges with every client `setup` holds."""
        return 0

    def setup(self, model: Tensors, server: Server) -> Exchange[Tensor | None]:
        """Ask the clients for what the prior needs; return what they are to be told, if any."""
        yield from ()
        return None

    def report(self, payload: Payload, client: Client, local: LocalTraining) -> Payload:
        """Answer the question of `setup`, on the client (action ``inform``).

        `local` is how the method trains, for a prior that has to train to know.
        """
        return Payload()

    def form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare what `report` answers (see `fedtail.forms`)."""
        return Form()

    def counts(self, told: Tensor | None, client: Client) -> Tensor:
        """Return π for this client."""
        return client.counts.to(torch.float32)


@ClassPrior.register("local")
class LocalPrior(ClassPrior):
    """The client's own class counts; nothing is sent."""


@ClassPrior.register("global")
class GlobalPrior(ClassPrior):
    """The sum of all clients' class counts, which they report once."""

    @property
    def exchanges(self) -> int:
        """One."""
        return 1

    def setup(self, model: Tensors, server: Server) -> Exchange[Tensor | None]:
        """Sum the counts that the clients report."""
        question = Payload()
        found = yield [Task(client, "inform", question) for client in server.clients]
        return found["counts"]["classes"].to(torch.float32)

    def report(self, payload: Payload, client: Client, local: LocalTraining) -> Payload:
        """Report the local class counts."""
        return Payload({"counts/classes": client.counts})

    def form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare the class counts."""
        return counts_form(classes)

    def counts(self, told: Tensor | None, client: Client) -> Tensor:
        """Return what the server told."""
        return super().counts(None, client) if told is None else told


@ClassPrior.register("smoothed")
class SmoothedPrior(GlobalPrior):
    """The client's own class counts, and some samples more of every class: n_c + a C q_c.

    q is the share of the class in the whole federation, or 1/C. A client with many samples trusts
    itself, one with few the others, and no class that somebody holds is masked. a = 0 is the local
    prior; as a grows it becomes the global one.
    """

    samples: float = Field(1.0, ge=0, description="a: how many samples are added, a class")
    towards: Literal["uniform", "global"] = Field(
        "uniform",
        description="q: the same for all classes, and nothing is sent; or the shares in the whole "
        "federation, for which clients report their class counts once",
    )

    @property
    def exchanges(self) -> int:
        """One, if the shares have to be known."""
        return int(self.towards == "global")

    def setup(self, model: Tensors, server: Server) -> Exchange[Tensor | None]:
        """Sum the counts that the clients report, if they are asked for."""
        if self.towards == "uniform":
            yield from ()
            return None
        return (yield from super().setup(model, server))

    def counts(self, told: Tensor | None, client: Client) -> Tensor:
        """Return n_c + a C q_c."""
        own = client.counts.to(torch.float32)
        share = torch.full_like(own, 1 / len(own)) if told is None else told / told.sum()
        return own + self.samples * len(own) * share


def counts_form(classes: int) -> Form:
    """Return the form of a client's class counts, which are not more than its samples."""
    counts = {"classes": Like((classes,), torch.int64, low=0, counted=True)}
    return Form().group("counts", counts, Total())
