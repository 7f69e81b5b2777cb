"""What a run promises its clients: the fields of differential privacy."""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from fedtail.config import Config
from fedtail.errors import FedtailError


class Privacy(Config):
    """Client-level (ε, δ): a client's whole data may be replaced by any other, or left out.

    Each update is clipped, all clients weigh the same, and Gaussian noise is added: to the sum, by
    a server that is trusted with it (central), or to every update, by the client (local).
    """

    epsilon: float | None = Field(
        None, gt=0, allow_inf_nan=True, description="ε of the whole run; none or inf is no privacy"
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="δ of the whole run")
    clip: float = Field(
        1.0,
        ge=1e-20,
        le=1e20,
        description="S: largest L2 norm of what a client adds to a sum",
    )
    quantile: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="let S follow this quantile of the updates' norms, privately; `clip` is then "
        "where it starts",
    )
    model: Literal["central", "local"] = Field(
        "central", description="who adds noise: the server to the sum, or each client to its update"
    )
    noise: float | None = Field(
        None,
        gt=0,
        description="σ / S; by default the least that lets all rounds fit into the budget",
    )
    sampling: Literal["fixed", "poisson"] = Field(
        "fixed",
        description="cohorts of `per_round` clients, or every client by a draw of its own, so that "
        "`per_round` is only the mean: a smaller ε for the same noise",
    )
    neighbours: Literal["replace", "remove"] = Field(
        "replace",
        description="what ε tells apart: a client's data and any other, or (with poisson) a run "
        "with the client and one without it",
    )
    simulated: bool = Field(
        False,
        description="noise and cohorts from the run's seed, so that it can be repeated: ε is then "
        "a number of a simulation and protects nobody",
    )

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.model == "local":
            for field, value in (("sampling", "poisson"), ("quantile", self.quantile)):
                if getattr(self, field) == value and value is not None:
                    raise FedtailError(
                        f"privacy.{field} = {value} is for privacy.model = central: in the local "
                        "model nobody draws or measures for the clients"
                    )
        if self.neighbours == "remove" and self.sampling == "fixed":
            raise FedtailError(
                "privacy.neighbours = remove needs privacy.sampling = poisson: a cohort of a fixed "
                "size that a client is left out of has another client in its place"
            )
        return self

    @property
    def on(self) -> bool:
        """Whether anything is promised."""
        return self.epsilon is not None and math.isfinite(self.epsilon)

    @property
    def distance(self) -> float:
        """How far two neighbours' sums lie apart, in S."""
        return 2.0 if self.neighbours == "replace" else 1.0
