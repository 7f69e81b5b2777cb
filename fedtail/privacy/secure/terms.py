"""What all members of one secure sum must agree on, and the digest that binds them to it."""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtail.errors import FedtailError
from fedtail.privacy.secure.crypto import KEY_BYTES, SIGNATURE_BYTES, sha256
from fedtail.protocol import ClientId, Payload, Scalar

SECURE_VERSION = 2
FEWEST = 2
"""A sum over one client is that client's update."""
TOO_FEW = "a sum over fewer than two clients would show one client's update"
MOST_MEMBERS = 100
"""How many members one sum has at most: all share secrets with all. More are several sums."""
KEYS_BYTES = 3 * KEY_BYTES + SIGNATURE_BYTES
"""What a member announces: keys for boxes, masks and signatures, and who vouches for them."""


class Refused(FedtailError):
    """What a member of a secure sum does not do, or a sum that there is not because of it."""


class SumKind(NamedTuple):
    """What all members of a secure sum are asked.

    Attributes
    ----------
    part
        What updates are added up within, if the method has parts.
    action, payload
        What they are to do, and the digest of what they are sent for it.
    layout
        The digest of what stands where in their vectors.
    """

    part: Scalar | None
    action: str
    payload: str
    layout: str


@dataclass(frozen=True)
class Terms:
    """The terms of one secure sum.

    Attributes
    ----------
    run, round, phase
        Where in which run.
    attempt
        A random name of the exchange: a round that is done again is another attempt.
    threshold
        t: so many members must stay to the end.
    width
        w: numbers are added up modulo 2^w.
    cohort
        Who is asked, ascending.
    addends
        How many vectors are added up in all, with those of other groups: so many must have room.
    kind
        What they are asked.
    """

    run: str
    round: int
    phase: str
    attempt: str
    threshold: int
    width: int
    cohort: tuple[ClientId, ...]
    addends: int
    kind: SumKind
    version: int = SECURE_VERSION

    def text(self) -> str:
        """Return it as it travels."""
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def session(self) -> str:
        """The name of the sum with these terms, which begins with the attempt's."""
        return self.attempt + sha256(b"fedtail session", self.text().encode()).hex()

    def place(self, client: ClientId) -> int:
        """Return where a member's shares are, from 1."""
        return self.cohort.index(client) + 1


def read_terms(text: str) -> Terms:
    """Return what `text` was made from, or refuse what no member should take part in."""
    try:
        plain: dict[str, Any] = json.loads(text)
        plain["cohort"], plain["kind"] = tuple(plain["cohort"]), SumKind(*plain["kind"])
        terms = Terms(**plain)
    except (KeyError, ValueError, TypeError, IndexError):
        raise Refused("the terms of this secure sum cannot be read") from None
    for wrong, reason in (
        (
            terms.version != SECURE_VERSION,
            f"it is of version {terms.version}, not {SECURE_VERSION}",
        ),
        (list(terms.cohort) != sorted(set(terms.cohort)), "a member stands there twice"),
        (terms.text() != text, "they could be read in another way"),
        (not re.fullmatch("[0-9a-f]{32}", terms.attempt), "the attempt has no name"),
        (terms.width not in (32, 64), f"it has numbers of {terms.width} bits"),
        (
            not isinstance(terms.addends, int) or terms.addends < len(terms.cohort),
            f"it has room for {terms.addends} vectors, and {len(terms.cohort)} are asked for one",
        ),
    ):
        if wrong:
            raise Refused(f"the terms of this secure sum are refused: {reason}")
    check_threshold(terms.threshold, len(terms.cohort))
    return terms


def check_threshold(threshold: int, members: int) -> None:
    """Refuse a t with which two halves of the members could open two sums."""
    if members < FEWEST:
        raise Refused(TOO_FEW)
    if members > MOST_MEMBERS:
        raise Refused(f"a secure sum has {MOST_MEMBERS} clients at most, and {members} are asked")
    if threshold < FEWEST or 2 * threshold <= members or threshold > members:
        raise Refused(
            f"a secure sum of {members} clients cannot have the threshold {threshold}: it is more "
            f"than half of them, and at least {FEWEST}"
        )


def threshold_of(share: float, members: int) -> int:
    """Return t for so many members."""
    return max(FEWEST, math.ceil(share * members))


def new_attempt() -> str:
    """Return a name that no attempt had before."""
    return secrets.token_hex(16)


def context_of(text: str, keys: Mapping[ClientId, bytes]) -> bytes:
    """Return CTX: the digest of the terms, and of who has which keys."""
    members = json.dumps(sorted(keys)).encode()
    return sha256(b"fedtail context", text.encode(), members, *(keys[c] for c in sorted(keys)))


def payload_digest(payload: Payload, without: str) -> str:
    """Return the digest of what a client is sent, but for one scalar."""
    told = {name: value for name, value in payload.scalars.items() if name != without}
    parts = [json.dumps(told, sort_keys=True).encode()]
    for name, tensor in sorted(payload.tensors.items()):
        parts += [f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), raw(tensor)]
    return sha256(*parts).hex()


def raw(tensor: Tensor) -> bytes:
    """Return the bytes of a tensor's numbers."""
    # A copy, because what has one number may claim to be contiguous and have an odd stride.
    flat = tensor.detach().cpu().clone(memory_format=torch.contiguous_format).reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()


def as_tensor(content: bytes, rows: int = 1) -> Tensor:
    """Return bytes as a tensor with so many rows."""
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(rows, -1)


def pieces(payload: Payload, name: str, rows: int, size: int) -> list[bytes]:
    """Return the rows of a tensor of bytes, or refuse one that looks otherwise."""
    tensor = payload.tensors.get(name)
    if tensor is None or tensor.dtype != torch.uint8 or tuple(tensor.shape) != (rows, size):
        raise Refused(f"sent no '{name}' of {rows} times {size} bytes")
    return [raw(row) for row in tensor]


def clients_in(payload: Payload, name: str) -> list[ClientId]:
    """Return a list of clients, or refuse what is none."""
    tensor = payload.tensors.get(name)
    if tensor is None or tensor.dtype != torch.int64 or tensor.ndim != 1:
        raise Refused(f"sent no list '{name}'")
    return [int(client) for client in tensor]
