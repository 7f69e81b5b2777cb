"""What a run promises its clients: the fields of differential privacy."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from fedtail.config import Config


class Privacy(Config):
    """Client-level (ε, δ): a client's whole data may be replaced by any other.

    Each update is clipped, all clients weigh the same, and Gaussian noise is added: to the sum, by
    a server that is trusted with it (central), or to every update, by the client (local).
    """

    epsilon: float | None = Field(
        None, gt=0, allow_inf_nan=True, description="ε of the whole run; none or inf is no privacy"
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="δ of the whole run")
    clip: float = Field(1.0, gt=0, description="S: largest L2 norm of what a client adds to a sum")
    model: Literal["central", "local"] = Field(
        "central", description="who adds noise: the server to the sum, or each client to its update"
    )
    noise: float | None = Field(
        None,
        gt=0,
        description="σ / S; by default the least that lets all rounds fit into the budget",
    )
    secret: bool = Field(
        False,
        description="draw the noise from the system's randomness: nobody can repeat the run, and "
        "nobody who knows its seed can subtract the noise",
    )

    @property
    def on(self) -> bool:
        """Whether anything is promised."""
        return self.epsilon is not None and math.isfinite(self.epsilon)
