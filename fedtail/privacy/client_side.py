"""The clients' side of protection: what an update becomes before it leaves.

The server's side is `fedtail.privacy.server_side`. Neither knows a method, and no method knows
them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fedtail.errors import FedtailError
from fedtail.forms import ANY_LENGTH, First, Form, Like, Number
from fedtail.privacy.ckks import Keyholder
from fedtail.privacy.clipping import CLIP, private_form, private_update
from fedtail.privacy.config import Privacy
from fedtail.privacy.layout import part_of, vector
from fedtail.privacy.noise import RandomBytes, seeded_bytes
from fedtail.privacy.unnamed import UnnamedKey
from fedtail.protocol import Client, Payload, Task

OPEN_SUM = "open_sum"
"""The action that decrypts the sums that the server made."""
SEALED, OPENED = "sealed", "opened"
"""The groups of ciphertexts, and of decrypted sums."""
WHOLE, PART = "whole", "part"
"""What is added up over all updates, and what over those of the same part."""
PARTIES = "parties"
"""A scalar of every task: how many were asked, and so the most that are added up."""


@dataclass
class ClientProtection:
    """Clips updates and encrypts them, as far as a run asks for it.

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

    @property
    def actions(self) -> frozenset[str]:
        """What a client can be asked that no method asks."""
        return frozenset() if self.keys is None else frozenset({OPEN_SUM})

    def form(self, declared: Form) -> Form:
        """Return what leaves a client in place of what a method declares."""
        if declared.why:  # it has noise of its own, or the server's side refuses it
            return declared
        clear = declared if self.privacy is None else private_form(declared, self.adaptive)
        return clear if self.keys is None else sealed_form(clear)

    def protected(self, answer: Payload, declared: Form, task: Payload, client: Client) -> Payload:
        """Return an update as it may leave the client."""
        if declared.why:
            return answer
        if self.privacy is not None:
            clip = float(task.scalars.get(CLIP, self.privacy.clip))
            source = self.source(client)
            answer = private_update(answer, declared, task, clip, self.sigma, source, self.adaptive)
            declared = private_form(declared, self.adaptive)
        return answer if self.keys is None else self.sealed(answer, declared, task)

    def sealed(self, answer: Payload, form: Form, task: Payload) -> Payload:
        """Return the ciphertexts of an update, and the part it belongs to."""
        parties, part = int(task.scalars[PARTIES]), part_of(form)
        names = [WHOLE] if part is None else [WHOLE, PART]
        tensors = {
            f"{SEALED}/{name}": self.holder.seal(vector(answer, form, name == PART), parties)
            for name in names
        }
        return Payload(tensors, {} if part is None else {PART: part})

    def perform(self, task: Task) -> Payload:
        """Decrypt the sums that the server made."""
        told = task.payload
        opened = {
            f"{OPENED}/{part}": self.holder.open_sum(
                data, int(told.scalars[f"length {part}"]), int(told.scalars[f"count {part}"])
            ).float()
            for part, data in told.group(SEALED).items()
        }
        return Payload(opened)

    @property
    def adaptive(self) -> bool:
        """Whether clients tell if their update was clipped."""
        return self.privacy is not None and self.privacy.quantile is not None

    def source(self, client: Client) -> RandomBytes:
        """Return where a client's noise comes from."""
        if self.privacy is None or not self.privacy.simulated:
            return os.urandom
        return seeded_bytes(client.seed, f"client/noise/{client.turn}", client.round, client.id)

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


def sealed_form(form: Form) -> Form:
    """Return what an encrypted update looks like; the server takes ciphertexts one by one."""
    part, cipher = part_of(form), Like((ANY_LENGTH,), torch.uint8)
    names = {WHOLE: cipher} if part is None else {WHOLE: cipher, PART: cipher}
    sealed = Form().group(SEALED, names, First())
    if part is not None:
        sealed = sealed.numbers(part=Number(float(part), float(part), whole=True))
    return sealed.singly("it is encrypted", noisy=True)
