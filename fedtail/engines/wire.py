"""Payloads as bytes: safetensors for the tensors, JSON for the scalars, and never pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from fedtail.errors import FedtailError
from fedtail.protocol import Payload


def pack_tensors(tensors: Mapping[str, Tensor], notes: Mapping[str, str] | None = None) -> bytes:
    """Return named tensors, and notes beside them, as safetensors bytes."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    data: bytes = safetensors.torch.save(plain, dict(notes or {}))
    return data


def unpack_tensors(data: bytes, where: str) -> dict[str, Tensor]:
    """Return the tensors of `pack_tensors`, or say that the bytes are damaged."""
    try:
        tensors: dict[str, Tensor] = safetensors.torch.load(data)
    except SafetensorError as error:
        raise FedtailError(f"{where} is damaged: {error}") from None
    return tensors


def pack(payload: Payload) -> bytes:
    """Return a payload as bytes."""
    notes = {
        "scalars": json.dumps(dict(payload.scalars)),
        "summable": json.dumps(sorted(payload.summable)),
    }
    return pack_tensors(payload.tensors, notes)


def unpack(data: bytes) -> Payload:
    """Return the payload of `pack`."""
    size = int.from_bytes(data[:8], "little")
    notes = json.loads(data[8 : 8 + size])["__metadata__"]
    return Payload(
        unpack_tensors(data, "a payload"),
        json.loads(notes["scalars"]),
        frozenset(json.loads(notes["summable"])),
    )
