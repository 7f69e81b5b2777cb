"""Payloads as bytes: JSON for the scalars, safetensors for the tensors, and never pickle."""

from __future__ import annotations

import json

from fedtail.errors import FedtailError
from fedtail.protocol import Payload
from fedtail.tensors import pack_tensors, unpack_tensors


def pack(payload: Payload) -> bytes:
    """Return a payload as bytes: the length of the JSON part, that part, the tensors."""
    head = json.dumps(dict(payload.scalars)).encode()
    return len(head).to_bytes(8, "little") + head + pack_tensors(payload.tensors)


def unpack(data: bytes) -> Payload:
    """Return the payload of `pack`."""
    body = 8 + int.from_bytes(data[:8], "little")
    scalars = json.loads(data[8:body])
    if not isinstance(scalars, dict):
        raise FedtailError("a payload is damaged: its scalars have no names")
    return Payload(unpack_tensors(data[body:], "a payload"), scalars)
