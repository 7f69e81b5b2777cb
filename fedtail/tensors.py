"""Named tensors as bytes: safetensors, in files and on the wire."""

from __future__ import annotations

from collections.abc import Mapping

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from fedtail.errors import FedtailError


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
