"""What protects updates at a node, as the server says it, and what the node demands of that.

A node of somebody else need not believe that a run is private: its own ``--node-config`` says what
it answers at all. ``require-privacy=true`` lets nothing out that is not clipped, ``max-clip`` and
``min-noise`` (σ / S, added here) say how short and how noisy it has to be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedtail.engines.flower.scrubbing import PublicError
from fedtail.engines.runtime import Clock, Runtime
from fedtail.privacy.client_side import ClientProtection
from fedtail.privacy.clipping import CLIP
from fedtail.privacy.config import Privacy
from fedtail.protocol import Task

TERMS = "protection"
"""What a message calls the terms under which updates leave a client."""


def terms_told(side: ClientProtection | None) -> dict[str, Any]:
    """Return what nodes are told of the clients' side of a protection."""
    if side is None or side.privacy is None:
        return {}
    return {TERMS: {"privacy": side.privacy.model_dump(mode="json"), "sigma": side.sigma}}


def side_told(notes: Mapping[str, Any]) -> ClientProtection | None:
    """Return the clients' side that a message asks for."""
    told = notes.get(TERMS)
    if told is None:
        return None
    privacy = Privacy.model_validate(told["privacy"])
    return ClientProtection(privacy=privacy, sigma=float(told["sigma"]))


@dataclass(frozen=True)
class Demands:
    """What a node wants of every answer that leaves it.

    Attributes
    ----------
    private
        Nothing leaves that is not clipped by its own process.
    max_clip
        S at most.
    min_noise
        σ / S at least, of noise that this node adds itself from the system's randomness.
    """

    private: bool = False
    max_clip: float = math.inf
    min_noise: float = 0.0

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Demands:
        """Return what a node's configuration demands."""
        asked = config.get("require-privacy", False)
        if not isinstance(asked, bool):
            raise PublicError(
                "has a require-privacy in its --node-config that is not true or false"
            )
        bounds = {}
        for name in ("max-clip", "min-noise"):
            given = config.get(name)
            if given is None:
                continue
            if isinstance(given, bool) or not isinstance(given, int | float) or not given > 0:
                raise PublicError(f"has a {name} in its --node-config that is no number above 0")
            bounds[name.replace("-", "_")] = float(given)
        return cls(asked or bool(bounds), **bounds)

    def check(self, place: Runtime, task: Task, clock: Clock) -> None:
        """Refuse a task whose answer would leave in another way than is demanded."""
        if not self.private:
            return
        side = place.client_side
        if not isinstance(side, ClientProtection) or side.privacy is None:
            raise PublicError("answers private runs only (require-privacy), and this is none")
        if side.privacy.simulated and self.min_noise:
            raise PublicError("adds no simulated noise (min-noise)")
        if clock.phase == "test" or place.declared(task).why:
            raise PublicError(
                f"lets nothing out that is not clipped (require-privacy), as the answer to "
                f"'{task.action}' would not be"
            )
        clip = float(task.payload.scalars.get(CLIP, side.privacy.clip))
        if not 0 < clip <= self.max_clip:
            raise PublicError(f"clips to {self.max_clip:g} at most (max-clip), not to {clip:g}")
        if not side.sigma >= self.min_noise * clip:
            raise PublicError(
                f"adds noise of {self.min_noise:g} S at least (min-noise), not of "
                f"{side.sigma / clip:g} S"
            )
