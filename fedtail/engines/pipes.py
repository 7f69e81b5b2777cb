"""Objects with tensors, through the pipe between two processes of one run.

Tensors are taken out of the object and follow it as bytes, piece by piece, straight from and into
their memory: `Connection.send` would make two copies of a model on each side.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

PIPE_BYTES = 1 << 23
"""Bytes that are sent at a time: whoever receives them makes a copy of as many."""
Shared = tuple[bytes, list[Tensor]]
"""An object without its tensors, and these in memory that processes share."""
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


class _SharedPickler(ForkingPickler):
    """Takes tensors out of an object, and copies them to shared memory."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.tensors: list[Tensor] = []
        self.places: dict[int, int] = {}

    def persistent_id(self, item: Any) -> tuple[int, bool, bool] | None:
        kind = type(item)
        if kind not in (Tensor, Parameter) or item.layout != torch.strided or item.is_cuda:
            return None
        if id(item) not in self.places:
            self.places[id(item)] = len(self.tensors)
            known = item.detach()
            self.tensors.append(known if item.is_shared() else known.clone().share_memory_())
        return self.places[id(item)], kind is Parameter, item.requires_grad


class _SharedUnpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: Sequence[Tensor]) -> None:
        super().__init__(file)
        self.tensors = tensors
        self.made: dict[int, Tensor] = {}

    def persistent_load(self, place: Any) -> Tensor:
        number, parameter, trained = place
        if number not in self.made:
            tensor = self.tensors[number]
            if parameter:
                tensor = Parameter(tensor, requires_grad=trained)
            self.made[number] = tensor
        return self.made[number]


def share(thing: Any) -> Shared:
    """Return an object as it goes through a pipe, with a copy of its tensors in shared memory.

    What is there already is not copied: both sides see what is written to it later.

    The pipe itself would move the tensors there: whoever else looks at their memory, such as a
    NumPy array made of one, would then look at nothing.
    """
    file = io.BytesIO()
    pickler = _SharedPickler(file)
    pickler.dump(thing)
    return file.getvalue(), pickler.tensors


def shared(told: Shared) -> Any:
    """Return an object that `share` has made ready, on the other side of a pipe."""
    data, tensors = told
    return _SharedUnpickler(io.BytesIO(data), tensors).load()


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
