"""GBME-p: GBME with a private proxy.

Zeng, Liu, Liu, Shen, Liu, Wu, "Global Balanced Experts for Federated Long-Tailed Learning",
ICCV 2023.

The same as GBME, but the classifier's change is clipped and gets Gaussian noise before the client
sends anything of it. It is released once: the budget (ε, δ) is spent before round 1.
"""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field, model_validator

from fedtail.errors import FedtailError
from fedtail.methods.base import Method
from fedtail.methods.gbme import GBME
from fedtail.training import ClassPrior, PrivateProxyPrior


@Method.register("gbme-p")
class GBMEp(GBME):
    """GBME whose proxy of the class prior is made of noisy uploads."""

    traffic: ClassVar[str] = (
        "as gbme, the C numbers up with noise; where no bias is trained, or with prior.reads=rows, "
        "the noisy change of the classifier's weight in their place"
    )

    prior: ClassPrior = Field(
        PrivateProxyPrior(), description="where Π comes from, and the noise in it"
    )

    @model_validator(mode="after")
    def _noisy(self) -> Self:
        if not isinstance(self.prior, PrivateProxyPrior):
            raise FedtailError(f"gbme-p has the prior 'private_proxy', not '{self.prior.name}'")
        return self
