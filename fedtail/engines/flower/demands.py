"""What protects updates at a node, as the server says it, and what the node demands of that.

A node of somebody else need not believe that a run is private: its own ``--node-config`` says what
it answers at all. ``require-privacy=true`` lets nothing out that is not clipped, ``max-clip`` and
``min-noise`` (σ / S, added here) say how short and how noisy it has to be. ``require-secure=true``
lets nothing out that is not masked in a secure sum, and ``secure-key`` with ``secure-pins`` says
who may be in it.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtail.engines.flower.scrubbing import PublicError
from fedtail.engines.flower.store import Files, Store
from fedtail.engines.robust import RobustMean
from fedtail.engines.runtime import Clock, Runtime
from fedtail.privacy.client_side import ClientProtection
from fedtail.privacy.clipping import CLIP
from fedtail.privacy.config import Privacy
from fedtail.privacy.secure.crypto import signing_public
from fedtail.privacy.secure.desk import desk_beside
from fedtail.privacy.secure.member import Identity, Member
from fedtail.protocol import Task

TERMS = "protection"
"""What a message calls the terms under which updates leave a client."""


def terms_told(side: ClientProtection | None) -> dict[str, Any]:
    """Return what nodes are told of the clients' side of a protection."""
    if side is None:
        return {}
    told: dict[str, Any] = {} if side.member is None else {"secure": True, "bits": side.bits}
    if side.privacy is not None:
        told |= {"privacy": side.privacy.model_dump(mode="json"), "sigma": side.sigma}
    if side.robust is not None:
        told["robust"] = side.robust.describe()
    return {TERMS: told}


def side_told(notes: Mapping[str, Any], member: Callable[[], Member]) -> ClientProtection | None:
    """Return the clients' side that a message asks for.

    Parameters
    ----------
    notes
        Of the message.
    member
        Makes the node's half of secure sums, if there are any.
    """
    told = notes.get(TERMS)
    if told is None:
        return None
    privacy = Privacy.model_validate(told["privacy"]) if "privacy" in told else None
    robust = RobustMean.model_validate(told["robust"]) if "robust" in told else None
    half = member() if told.get("secure") else None
    return ClientProtection(
        half, privacy, float(told.get("sigma", 0.0)), robust, told.get("bits", 64)
    )


def node_member(config: Mapping[str, Any], store: Store) -> Member:
    """Return a node's half of secure sums: where it keeps its secrets, and whom it trusts."""
    if not isinstance(store, Files):
        raise PublicError(
            "takes part in secure sums only with a state-dir in its --node-config, where it marks "
            "what it has answered"
        )
    return Member(desk_beside(store.folder), node_identity(config))


def node_identity(config: Mapping[str, Any]) -> Identity | None:
    """Return who a node is to the others, if its configuration says so."""
    key, pins = config.get("secure-key"), config.get("secure-pins")
    if not key and not pins:
        return None
    if not key or not pins:
        raise PublicError("has one of secure-key and secure-pins in its --node-config, not both")
    try:
        private = bytes.fromhex(Path(str(key)).expanduser().read_text("utf-8"))
        named = tomllib.loads(Path(str(pins)).expanduser().read_text("utf-8"))
        pinned = {int(client): bytes.fromhex(public) for client, public in named.items()}
        signing_public(private)
    except (OSError, ValueError, TypeError):
        raise PublicError("cannot read its secure-key or secure-pins") from None
    return Identity(private, pinned)


@dataclass(frozen=True)
class Demands:
    """What a node wants of every answer that leaves it.

    Attributes
    ----------
    private
        Nothing leaves that is not clipped by its own process.
    secure
        Nothing leaves that is not masked in a secure sum.
    max_clip
        S at most.
    min_noise
        σ / S at least, of noise that this node adds itself from the system's randomness.
    """

    private: bool = False
    secure: bool = False
    max_clip: float = math.inf
    min_noise: float = 0.0

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Demands:
        """Return what a node's configuration demands."""
        asked = [config.get(f"require-{what}", False) for what in ("privacy", "secure")]
        for what, value in zip(("privacy", "secure"), asked, strict=True):
            if not isinstance(value, bool):
                raise PublicError(
                    f"has a require-{what} in its --node-config that is not true or false"
                )
        bounds = {}
        for name in ("max-clip", "min-noise"):
            given = config.get(name)
            if given is None:
                continue
            if isinstance(given, bool) or not isinstance(given, int | float) or not given > 0:
                raise PublicError(f"has a {name} in its --node-config that is no number above 0")
            bounds[name.replace("-", "_")] = float(given)
        return cls(asked[0] or bool(bounds), asked[1], **bounds)

    def check(self, place: Runtime, task: Task, clock: Clock) -> None:
        """Refuse a task whose answer would leave in another way than is demanded."""
        side = place.client_side
        masked = isinstance(side, ClientProtection) and side.member is not None
        if self.secure and not masked:
            raise PublicError("answers secure sums only (require-secure), and this is none")
        if side is not None and task.action in side.actions:
            return
        if self.secure and (clock.phase == "test" or place.declared(task).why):
            raise PublicError(
                f"lets nothing out that is not masked (require-secure), as the answer to "
                f"'{task.action}' would not be"
            )
        if not self.private:
            return
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
