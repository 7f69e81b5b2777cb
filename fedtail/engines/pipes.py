"""Objects with tensors, through the pipe between two processes of one run.

Tensors are taken out of the object and follow it as bytes, piece by piece, straight from and into
their memory: `Connection.send` would make two copies of a model on each side.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

PIPE_BYTES = 1 << 23
"""Bytes that are sent at a time: whoever receives them makes a copy of as many."""
Look = tuple[tuple[int, ...], torch.dtype]


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.tensors: list[Tensor] = []

    def persistent_id(self, item: Any) -> int | None:
        if not isinstance(item, Tensor):
            return None
        if item.layout != torch.strided:
            raise TypeError("a sparse tensor")
        self.tensors.append(item.detach().cpu().contiguous())
        return len(self.tensors) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: Sequence[Tensor]) -> None:
        super().__init__(file)
        self.tensors = tensors

    def persistent_load(self, number: Any) -> Tensor:
        tensor: Tensor = self.tensors[number]
        return tensor


def send(pipe: Connection, message: Any) -> None:
    """Send an object."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(message)
    pipe.send((file.getvalue(), looks(pickler.tensors)))
    send_tensors(pipe, pickler.tensors)


def receive(pipe: Connection) -> Any:
    """Return an object that `send` sent."""
    data, expected = pipe.recv()
    return _Unpickler(io.BytesIO(data), list(incoming(pipe, expected))).load()


def looks(tensors: Sequence[Tensor]) -> list[Look]:
    """Return what the receiver has to know of tensors beforehand."""
    return [(tuple(t.shape), t.dtype) for t in tensors]


def send_tensors(pipe: Connection, tensors: Sequence[Tensor]) -> None:
    """Send the bytes of tensors."""
    for tensor in tensors:
        for chunk in _chunks(tensor):
            pipe.send_bytes(chunk.numpy().data)


def incoming(pipe: Connection, expected: Sequence[Look]) -> Iterator[Tensor]:
    """Receive the tensors that `send_tensors` sends, one at a time."""
    for shape, dtype in expected:
        tensor = torch.empty(shape, dtype=dtype)
        for chunk in _chunks(tensor):
            pipe.recv_bytes_into(chunk.numpy().data)
        yield tensor


def _chunks(tensor: Tensor) -> Sequence[Tensor]:
    return torch.split(tensor.view(-1).view(torch.uint8), PIPE_BYTES) if tensor.numel() else ()
