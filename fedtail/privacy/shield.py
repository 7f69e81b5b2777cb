"""The clients' half of protection: what an update becomes before it leaves.

The engine's half is `fedtail.engines.protected`. Neither knows a method, and no method knows them.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedtail.engines.embedded import TESTING
from fedtail.errors import FedtailError
from fedtail.privacy.additive import Addend, addends
from fedtail.privacy.ckks import Keyholder
from fedtail.privacy.clipping import private_update
from fedtail.privacy.config import Privacy
from fedtail.privacy.unnamed import UnnamedKey
from fedtail.protocol import Client, Payload, Scalar

SEALED, OPENED = "sealed", "opened"
"""The groups of addends or their ciphertexts, and of decrypted sums."""
PARTIES = "parties"
"""A scalar of every task: how many were asked, and so the most that are added up."""


@dataclass
class Shield:
    """Turns updates into addends, under encryption if there are keys, clipped if it must be.

    Attributes
    ----------
    keys
        The folder with the clients' key, or a key of the run's own; none for sums in the clear.
    privacy
        What is promised, if anything is.
    sigma
        The noise that a client adds itself; none in the central model.
    """

    keys: Path | UnnamedKey | None = None
    privacy: Privacy | None = None
    sigma: float = 0.0
    _holder: Keyholder | None = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        # The key is read by the process that needs it, and never sent to one.
        return {**self.__dict__, "_holder": None}

    def close(self, answer: Payload, task: Payload, client: Client) -> Payload:
        """Return an update as it may leave the client."""
        if client.turn >= TESTING or not (answer.summable or answer.tensors):
            return answer
        if self.privacy is not None and answer.summable:
            clip, draw = self.privacy.clip, self.generator(client)
            answer = private_update(answer, task, client.num_classes, clip, self.sigma, draw)
        parts = addends(answer, task.scalars, client.num_classes)
        if not answer.summable:
            return answer
        return sealed(answer, parts, task.scalars, self._carry(parts, task))

    def open_sum(self, task: Payload) -> Payload:
        """Decrypt the sums that the server made."""
        opened = {
            f"{OPENED}/{part}": self.holder.open_sum(
                data, int(task.scalars[f"length {part}"]), int(task.scalars[f"count {part}"])
            ).float()
            for part, data in task.group(SEALED).items()
        }
        return Payload(opened)

    def generator(self, client: Client) -> torch.Generator:
        """Return the stream of a client's noise."""
        if self.privacy is not None and self.privacy.secret:
            return secret_generator()
        return client.generator("privacy noise of an update")

    @property
    def holder(self) -> Keyholder:
        """The clients' key."""
        if self.keys is None:
            raise FedtailError("nothing is encrypted in this run")
        if self._holder is None:
            self._holder = (
                Keyholder.of(self.keys.read())
                if isinstance(self.keys, UnnamedKey)
                else Keyholder.open(self.keys)
            )
        return self._holder

    def _carry(self, parts: dict[str, Addend], task: Payload) -> dict[str, Tensor]:
        if self.keys is None:
            return {part: a.numbers.to(torch.float32) for part, a in parts.items()}
        parties = int(task.scalars.get(PARTIES, 1))
        return {part: self.holder.seal(a.numbers, parties) for part, a in parts.items()}


def secret_generator() -> torch.Generator:
    """Return a stream that nobody can repeat."""
    return torch.Generator().manual_seed(secrets.randbits(63))


def sealed(
    answer: Payload,
    parts: dict[str, Addend],
    echoed: Mapping[str, Scalar],
    carried: dict[str, Tensor],
) -> Payload:
    """Return what travels: the addends, their forms, and what the server knows already."""
    tensors = {f"{SEALED}/{part}": data for part, data in carried.items()}
    for name, t in answer.tensors.items():
        if name.partition("/")[0] in answer.released:
            tensors[name] = t
    scalars: dict[str, Scalar] = {
        name: value for name, value in answer.scalars.items() if echoed.get(name) == value
    }
    for part, addend in parts.items():
        scalars[f"form {part}"] = addend.form
        scalars[f"within {part}"] = addend.within
    return Payload(tensors, scalars, released=answer.released)
