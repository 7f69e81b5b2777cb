"""Where the class prior π comes from that a prior-based loss uses.

Local: each client's own counts, nothing is sent. Global: every client reports its counts once, in
the preliminary exchange, which reveals them to the server (or only their sum, under encryption).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from fedtail.config import Component, Registry
from fedtail.forms import Form, Like, Total
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Client, Exchange, Payload, Server, Task, Tensors
from fedtail.training.local import LocalTraining


class ClassPrior(Component):
    """Class counts up to a factor, as seen by a client."""

    registry: ClassVar[Registry[ClassPrior]] = Registry("prior")
    exchanges: ClassVar[int] = 0
    """How many exchanges with every client `setup` holds."""

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

    exchanges: ClassVar[int] = 1

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


def counts_form(classes: int) -> Form:
    """Return the form of a client's class counts, which are not more than its samples."""
    counts = {"classes": Like((classes,), torch.int64, low=0, counted=True)}
    return Form().group("counts", counts, Total())
