"""A head in closed form on features as they are: no training, two exchanges.

For features that need no training: of a pretrained network, or computed beforehand. Every client
sends its class counts, and then what its features add up to (`fedtail.training.feature_sums`). The
server solves for the head (`fedtail.training.closed_heads`), which is the one that all samples in
one place would give, however they are shared out.

Class-balanced ridge regression was measured here first; plain ridge from sums is He et al., "AFL: A
Single-Round Analytic Approach for Federated Learning with Pre-trained Models", CVPR 2025, and the
nearest mean Legate et al., "Guiding The Last Layer in Federated Learning with Pre-Trained Models",
NeurIPS 2023.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from fedtail.methods.base import Asks, Method
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Exchange, Server, Tensors
from fedtail.training.closed_heads import SKETCH, BalancedRidge, ClosedHead
from fedtail.volume import Volume


@dataclass(frozen=True)
class ClosedFormState:
    """What the server keeps.

    Attributes
    ----------
    model
        The model, with the newest head.
    complete
        Whether every client's sums are in it: then nothing is asked any more.
    """

    model: dict[str, Tensor]
    complete: bool = False


@Method.register("closed-form")
class ClosedForm(Method[ClosedFormState]):
    """Computes a class-balanced head from sums of features, in one round and without training."""

    family: ClassVar[str] = "closed form"
    paper: ClassVar[str] = (
        "He et al., AFL: A Single-Round Analytic Approach for Federated Learning with Pre-trained "
        "Models, CVPR 2025; Legate et al., Guiding The Last Layer in Federated Learning with "
        "Pre-Trained Models, NeurIPS 2023; class balance is ours"
    )
    needs: ClassVar[tuple[str, ...]] = (
        "a linear classifier",
        "class counts, feature sums and sums of their products, over all clients",
    )
    traffic: ClassVar[str] = (
        "in place of rounds, once: the model and C counts down to every client, and up two times C "
        "counts, C + 2 means of features and the triangle of their second moments, in double "
        "precision"
    )

    head: ClosedHead = Field(BalancedRidge(), description="how it is computed from sums")

    def build_model(self, base: SplitModel) -> SplitModel:
        """Refuse a classifier that cannot carry the head."""
        self.head.carried_by(base)
        return base

    def init(self, model: SplitModel, server: Server) -> ClosedFormState:
        """Start from the model as it is."""
        return ClosedFormState(model.tensors())

    def round(self, s: ClosedFormState, server: Server) -> Exchange[ClosedFormState]:
        """Ask everybody for sums, unless all of them were there before, and solve."""
        if s.complete:
            yield from ()
            return s
        sums = yield from self.head.ask(s.model, server.model, server)
        head = self.head.put(sums, server.model)
        server.log("samples", int(sums.counts.sum()))
        complete = sums.clients == len(server.clients)
        return replace(s, model={**s.model, **head}, complete=complete)

    def eval_model(self, s: ClosedFormState) -> Tensors:
        """Return the model with the head."""
        return s.model

    def asks(self) -> Asks:
        """Ask everybody in the first round; moments of features are not clipped."""
        return Asks(
            round="own", numbers="second moments of features are sent as they are, not clipped"
        )

    def volume(self, model: SplitModel, classes: int, held: float) -> Volume:
        """Count the sums of all clients, once."""
        return Volume(once=self.head.nbytes(model, classes), less=SKETCH)

    def closed_head(self) -> ClosedHead | None:
        """Return how it makes a head of sums of features."""
        return self.head
