"""What passes between a node's short-lived processes and its resident one, through a socket.

The bytes are those of `fedtail.engines.wire`, after their number: JSON, then safetensors. Reading
them runs no code. No PyTorch here: NumPy reads and writes the same.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors.numpy

NamedArrays = dict[str, np.ndarray]
ArrayGroups = dict[str, NamedArrays]


def send_arrays(link: socket.socket, head: Mapping[str, Any], groups: ArrayGroups) -> None:
    """Send JSON and groups of named arrays."""
    names = [[group, list(arrays)] for group, arrays in groups.items()]
    every = [_in_order(array) for arrays in groups.values() for array in arrays.values()]
    text = json.dumps({**head, "names": names}).encode()
    # Numbers for names: any name may stand in the JSON. None are no bytes, as in a payload.
    body = safetensors.numpy.save({str(n): a for n, a in enumerate(every)}) if every else b""
    link.sendall(_eight(8 + len(text) + len(body)) + _eight(len(text)) + text)
    if body:  # who has all that was said may be gone already
        link.sendall(body)


def receive_arrays(link: socket.socket) -> tuple[dict[str, Any], ArrayGroups]:
    """Return what `send_arrays` sent; `EOFError` says that the other side is gone."""
    data = _exactly(link, int.from_bytes(_exactly(link, 8), "little"))
    body = 8 + int.from_bytes(data[:8], "little")
    head: dict[str, Any] = json.loads(bytes(data[8:body]))
    held = safetensors.numpy.load(bytes(data[body:])) if body < len(data) else {}
    every = (held[str(number)] for number in range(len(held)))
    return head, {group: {n: next(every) for n in names} for group, names in head.pop("names")}


def _in_order(array: np.ndarray) -> np.ndarray:
    # safetensors takes the bytes of an array as they lie in memory, whatever the strides say.
    return array if array.flags.c_contiguous else array.copy("C")


def _eight(number: int) -> bytes:
    return number.to_bytes(8, "little")


def _exactly(link: socket.socket, size: int) -> memoryview:
    data = memoryview(bytearray(size))
    filled = 0
    while filled < size:
        got = link.recv_into(data[filled:])
        if not got:
            raise EOFError
        filled += got
    return data
