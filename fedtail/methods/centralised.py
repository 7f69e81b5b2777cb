"""Training in one place: the reference that a federation is measured against.

Shuai, Shen, Jiang, Zhao, Yan, Xing, "BalanceFL: Addressing Class Imbalance in Long-Tail Federated
Learning", IPSN 2022, compares with it, as most papers do; Balanced Softmax is of Ren et al.,
"Balanced Meta-Softmax for Long-Tailed Visual Recognition", NeurIPS 2020.

All clients' samples are held by one client, which is all there is of the method: a round is so many
epochs over them, and FedAvg of one client is that client's model. The split stays that of the other
methods, so the training samples are the same to the last one.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedtail.losses import BalancedSoftmax, LocalLoss
from fedtail.methods.base import Asks, Method
from fedtail.methods.fedavg import FedAvg, ModelState


@Method.register("centralised")
class Centralised(FedAvg[ModelState]):
    """Train on the samples of all clients in one place."""

    family: ClassVar[str] = "reference"
    paper: ClassVar[str] = (
        "no federated method; as in Shuai et al., BalanceFL: Addressing Class Imbalance in "
        "Long-Tail Federated Learning, IPSN 2022"
    )
    needs: ClassVar[tuple[str, ...]] = ("all data in one place: samples leave the clients",)
    traffic: ClassVar[str] = (
        "a model to and from the one place a round; the samples that go there are not counted"
    )
    pooled: ClassVar[bool] = True

    def asks(self) -> Asks:
        """One place has all the data: there is nothing to add up."""
        return (
            super()
            .asks()
            ._replace(single="there is only one place, and a sum over one is what it sent")
        )


@Method.register("centralised-bsm")
class CentralisedBSM(Centralised):
    """Train on the samples of all clients in one place, with Balanced Softmax."""

    paper: ClassVar[str] = (
        "no federated method; Ren et al., Balanced Meta-Softmax for Long-Tailed Visual "
        "Recognition, NeurIPS 2020"
    )

    # The one client's own counts are the global ones.
    loss: LocalLoss = Field(BalancedSoftmax(), description="the loss that is minimised")
