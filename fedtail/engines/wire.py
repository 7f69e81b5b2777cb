"""Payloads as bytes: JSON for the scalars, safetensors for the tensors, and never pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from fedtail.errors import FedtailError
from fedtail.protocol import Payload


def pack_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """Return named tensors as safetensors bytes; none as no bytes."""
    plain: dict[str, Tensor] = {}
    stored: set[int] = set()
    for name, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous()
        place = flat.untyped_storage().data_ptr()
        # safetensors refuses tensors that share memory (tied weights, views of one another).
        plain[name] = flat.clone() if place in stored else flat
        stored.add(place)
    # safetensors writes an empty file that it does not read back.
    return safetensors.torch.save(plain) if plain else b""


def unpack_tensors(data: bytes, where: str) -> dict[str, Tensor]:
    """Return the tensors of `pack_tensors`, or say that the bytes are damaged."""
    try:
        return safetensors.torch.load(data) if data else {}
    except SafetensorError as error:
        raise FedtailError(f"{where} is damaged: {error}") from None


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
