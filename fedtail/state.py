"""Server states as plain data: a state is a dataclass whose fields hold tensors and JSON values."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedtail.protocol import Tensors

S = TypeVar("S")
Tree = Any


def flatten(state: Any) -> tuple[Tree, dict[str, Tensor]]:
    """Return a state as a JSON tree, and the tensors that its leaves name."""
    tensors: dict[str, Tensor] = {}
    tree = {f.name: _plant(getattr(state, f.name), f.name, tensors) for f in fields(state)}
    return tree, tensors


def restore(kind: type[S], tree: Tree, tensors: Tensors) -> S:
    """Return the state that `flatten` took apart."""
    return kind(**{name: _grow(branch, tensors) for name, branch in tree.items()})


def digest(tensors: Tensors) -> str:
    """Return the SHA-256 of named tensors: names, types, shapes and every bit."""
    sha = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        sha.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        if tensor.numel():  # torch does not view an empty tensor as bytes
            sha.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()


def _plant(value: Any, path: str, tensors: dict[str, Tensor]) -> Tree:
    if isinstance(value, Tensor):
        tensors[path] = value
        return {"$tensor": path}
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            # JSON would turn them into text, and the method would not find them again.
            raise TypeError(f"the keys of a mapping in a server state are text (in {path})")
        return {key: _plant(item, f"{path}/{key}", tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plant(item, f"{path}/{i}", tensors) for i, item in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a server state cannot hold {type(value).__name__} (in {path})")


def _grow(tree: Tree, tensors: Tensors) -> Any:
    if isinstance(tree, dict) and "$tensor" in tree:
        return tensors[tree["$tensor"]]
    if isinstance(tree, dict):
        return {key: _grow(item, tensors) for key, item in tree.items()}
    if isinstance(tree, list):
        return [_grow(item, tensors) for item in tree]
    return tree
