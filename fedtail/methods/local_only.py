"""Local-only training: every client for itself.

The reference of Shuai, Shen, Jiang, Zhao, Yan, Xing, "BalanceFL: Addressing Class Imbalance in
Long-Tail Federated Learning", IPSN 2022, Fig. 6: what would clients have without the federation?

All begin with the same initial model, which each is sent once. From then on a client trains its own
model when it is in the cohort, and nothing of it is averaged or sent. Each of the K models is
tested; the scores, means and boxes over clients, stand under ``personal``. What is shipped is the
model of the client with the most samples among those that have trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from torch import Tensor

from fedtail.forms import COUNT, SAMPLES, Form, Mean, like
from fedtail.methods.base import Asks, Method, action
from fedtail.methods.fedavg import FedAvg, ModelState
from fedtail.models.split_model import SplitModel
from fedtail.protocol import (
    Client,
    ClientId,
    Exchange,
    Payload,
    Server,
    Task,
    Tensors,
    grouped,
)
from fedtail.reduce import Reduced

ALONE = "nothing is added up"


@dataclass(frozen=True)
class LocalOnlyState(ModelState):
    """What the server keeps; `model` stays the initial one.

    Attributes
    ----------
    samples
        How many samples each client has that has trained, by its id.
    """

    samples: dict[str, int] = field(default_factory=dict)


@Method.register("local-only")
class LocalOnly(FedAvg[LocalOnlyState]):
    """Let every client train alone, and test each one's model."""

    family: ClassVar[str] = "reference"
    paper: ClassVar[str] = (
        "no federated method; as in Shuai et al., BalanceFL: Addressing Class Imbalance in "
        "Long-Tail Federated Learning, IPSN 2022"
    )
    needs: ClassVar[tuple[str, ...]] = ("a model kept by each client",)
    traffic: ClassVar[str] = (
        "less: the initial model down once, no model up but that of the largest client at the end"
    )

    # Server half

    def new_state(self, tensors: dict[str, Tensor]) -> LocalOnlyState:
        """Return the state before anyone has trained."""
        return LocalOnlyState(tensors)

    def round(self, s: LocalOnlyState, server: Server) -> Exchange[LocalOnlyState]:
        """Have the cohort train, each client its own model."""
        found = yield self.tasks("train", server.cohort(), s, server)
        return self.aggregate(s, found, server)

    def tasks(
        self, action: str, clients: Sequence[ClientId], s: LocalOnlyState, server: Server
    ) -> list[Task]:
        """Return a task for each; who has no model of its own yet is sent the initial one."""
        first = self.broadcast(s, server)
        rest = {name: t for name, t in first.tensors.items() if not name.startswith("model/")}
        again = Payload(rest)
        return [Task(k, action, again if str(k) in s.samples else first) for k in clients]

    def aggregate(self, s: LocalOnlyState, found: Reduced, server: Server) -> LocalOnlyState:
        """Note who has trained; there is nothing to average."""
        told = {str(u.client): int(u.payload.scalars["samples"]) for u in found.each}
        return replace(s, samples={**s.samples, **told})

    def finalize(self, s: LocalOnlyState, server: Server) -> Exchange[LocalOnlyState]:
        """Ask the client with the most samples for its model."""
        if not s.samples:
            return s
        largest = min(map(int, s.samples), key=lambda k: (-s.samples[str(k)], k))
        found = yield [Task(largest, "show", Payload())]
        return replace(s, model=found.each[0].payload.group("model"))

    def personal(self, s: LocalOnlyState, server: Server) -> list[Task]:
        """Have every client's model tested; of those that have not trained, the initial one."""
        return self.tasks("show", server.clients, s, server)

    def asks(self) -> Asks:
        """Need nothing of the clients but to be told who they are."""
        return super().asks()._replace(round="cohort", after=True, single=ALONE)

    # Client half

    def starting(self, payload: Payload, state: Tensors) -> dict[str, Tensor]:
        """Go on with the client's own model; begin with the one received."""
        return own_model(payload, state)

    def kept(self, model: SplitModel) -> dict[str, str]:
        """Keep the whole model, statistics and all, for this client's next round."""
        return {f"model/{name}": name for name, _ in model.live()}

    def sent(self, payload: Payload, model: SplitModel, names: Iterable[str]) -> dict[str, str]:
        """Send nothing of it, only that it was done."""
        return {}

    def train_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare how much was done, of every client its own, and no model."""
        return Form().numbers(samples=SAMPLES, steps=COUNT).singly(ALONE)

    def show_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare the model."""
        return Form().group("model", like(model.live()), Mean(by="")).singly(ALONE)

    @action
    def show(self, payload: Payload, client: Client) -> Payload:
        """Return the client's model."""
        return Payload(grouped("model", own_model(payload, client.state)))


def own_model(payload: Payload, state: Tensors) -> dict[str, Tensor]:
    """Return the model that a client keeps, or the one it received if it keeps none."""
    return Payload(state).group("model") or payload.group("model")
