"""What is done to a trained model before it is tested and shipped: a last step after any method.

Its exchanges are held with every client after those of the method, on the model that would be
shipped, and they change nothing that training goes on from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from fedtail.config import Component, Registry
from fedtail.errors import FedtailError
from fedtail.models.split_model import SplitModel
from fedtail.protocol import ClientId, Exchange, Server
from fedtail.training.blends import Judge, Mixture, choose_blend
from fedtail.training.classifier import named, unnamed
from fedtail.training.closed_heads import SKETCH, BalancedRidge, ClosedHead
from fedtail.training.feature_sums import SINGLE
from fedtail.volume import Volume, model_bytes

Model = dict[str, Tensor]


@dataclass(frozen=True)
class Jury:
    """Who chooses between models.

    Attributes
    ----------
    clients
        Who holds samples out; nobody, if nothing is held out.
    judge
        What makes a score of what they counted.
    """

    clients: Sequence[ClientId]
    judge: Judge


class Finish(Component):
    """A last step after training."""

    registry: ClassVar[Registry[Finish]] = Registry("finish")
    asks: ClassVar[bool] = True
    """Whether clients are asked for anything."""

    def closed_head(self) -> ClosedHead | None:
        """Return how it makes a head of sums of features, if it does: what an audit attacks."""
        return None

    def volume(self, network: SplitModel, classes: int, judged: bool) -> Volume | None:
        """Return how many bytes it sends, if they grow with classes and features.

        Parameters
        ----------
        network, classes
            What is shipped.
        judged
            Whether anybody holds samples out, and is asked to choose.
        """
        return None

    def check(self, network: SplitModel) -> None:
        """Refuse a network that it cannot be done to."""

    def exchange(
        self, model: Model, network: SplitModel, server: Server, jury: Jury
    ) -> Exchange[Model]:
        """Return what is shipped in place of a model.

        Parameters
        ----------
        model, network
            What would be shipped, and the module that it fits.
        server
            Whose clients can be asked.
        jury
            Who can choose.
        """
        yield from ()
        return model


@Finish.register("none")
class NoFinish(Finish):
    """Ship what was trained."""

    asks: ClassVar[bool] = False


@Finish.register("closed-form")
class ClosedFormFinish(Finish):
    """Put a head in the trained one's place that is computed from sums of all clients' features."""

    head: ClosedHead = Field(BalancedRidge(), description="how it is computed from sums")
    without_bias: ClosedHead | None = Field(
        None, description="the same for a classifier without a bias, where the head needs one"
    )
    required: bool = Field(
        True,
        description="refuse a classifier that cannot carry the head; false ships what was trained",
    )
    blend: Literal["validation", "none"] = Field(
        "validation",
        description="mix it with the trained head as does best on what clients hold out, if they "
        "hold out any; or take it as it is",
    )

    def closed_head(self) -> ClosedHead | None:
        """Return how the head is computed."""
        return self.head

    def volume(self, network: SplitModel, classes: int, judged: bool) -> Volume | None:
        """Count the sums of all clients, and the two heads of which they choose a mixture, once."""
        if not self.carried_by(network):
            return None
        sums = self.head_of(network).nbytes(network, classes)
        heads = model_bytes(network) + SINGLE * classes * (network.feature_dim + 1)
        chosen = heads if judged and self.blend == "validation" else 0
        return Volume(once=sums + chosen, less=f"finish.{SKETCH}")

    def check(self, network: SplitModel) -> None:
        """Refuse a classifier that cannot carry the head, if it has to."""
        self.carried_by(network)

    def carried_by(self, network: SplitModel) -> bool:
        """Whether a network's classifier can carry the head."""
        try:
            self.head_of(network).carried_by(network)
        except FedtailError:
            if self.required:
                raise
            return False
        return True

    def head_of(self, network: SplitModel) -> ClosedHead:
        """Return how the head of a network is computed."""
        if self.without_bias is None or not self.head.needs_bias:
            return self.head
        biased = isinstance(getattr(network.classifier, "bias", None), Tensor)
        return self.head if biased else self.without_bias

    def exchange(
        self, model: Model, network: SplitModel, server: Server, jury: Jury
    ) -> Exchange[Model]:
        """Compute the head, and let those who hold samples out choose how much of it is taken."""
        if not self.carried_by(network):
            return model
        head = self.head_of(network)
        sums = yield from head.ask(model, network, server)
        found = head.put(sums, network)
        if not found:
            return model
        chosen = Mixture(1.0, 1.0)
        if self.blend == "validation" and jury.clients:
            other = unnamed(found, network)
            chosen = yield from choose_blend(model, other, jury.clients, jury.judge)
            found = named(chosen.of(unnamed(model, network), other), network)
        server.log("closed_form_share", chosen.share)
        server.log("closed_form_temperature", chosen.temperature)
        return {**model, **found}


def shipped_network(tensors: Model, model: SplitModel, base: SplitModel) -> SplitModel:
    """Return the network that a shipped model fits: the one that a method trains, or the user's."""
    return model if model.fits(tensors) else base


def refuse_private(finish: Finish) -> None:
    """Refuse a last step that asks clients where what they say must be differentially private."""
    if finish.asks:
        raise FedtailError(
            f"finish = '{finish.name}' asks clients again after training, which the budget of "
            "differential privacy does not cover"
        )
