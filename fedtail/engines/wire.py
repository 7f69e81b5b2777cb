"""Payloads as bytes: JSON for the scalars, safetensors for the tensors, and never pickle."""

from __future__ import annotations

import json

from fedtail.errors import FedtailError
from fedtail.protocol import Payload, Sum
from fedtail.tensors import pack_tensors, unpack_tensors


def pack(payload: Payload) -> bytes:
    """Return a payload as bytes: the length of the JSON part, that part, the tensors."""
    notes = {
        "scalars": dict(payload.scalars),
        "summable": sorted(payload.summable),
        "sums": {group: list(how) for group, how in payload.sums.items()},
        "released": sorted(payload.released),
    }
    head = json.dumps(notes).encode()
    return len(head).to_bytes(8, "little") + head + pack_tensors(payload.tensors)


def unpack(data: bytes) -> Payload:
    """Return the payload of `pack`."""
    body = 8 + int.from_bytes(data[:8], "little")
    notes = json.loads(data[8:body])
    if not isinstance(notes["scalars"], dict):
        raise FedtailError("a payload is damaged: its scalars have no names")
    tensors = unpack_tensors(data[body:], "a payload")
    return Payload(
        tensors,
        notes["scalars"],
        frozenset(notes["summable"]),
        {group: Sum(*how) for group, how in notes["sums"].items()},
        frozenset(notes["released"]),
    )
