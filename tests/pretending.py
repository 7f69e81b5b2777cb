"""A device that is not there: tensors of the CPU that hold what a GPU would refuse against us.

Each tensor's storage is tagged with the device that it was made on or moved to. Tensors answer with
that device, and an operation on two devices, a float64 on "mps", NumPy's view of a tensor that is
not on the CPU, or a generator of another device raise as they would there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

CPU = torch.device("cpu")
DOUBLE = (torch.float64, torch.complex128)
ANYWHERE = ("copy_", "_foreach_copy_")
"""Operations that take what they are given from any device."""

INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index")
"""Operations whose indices may be on the CPU."""

NUMPY = ("numpy", "__array__", "__dlpack__")
MOVES = ("to", "cpu", "cuda", "as_tensor", "asarray")


def device_of(tensor: Tensor) -> torch.device:
    """Return the device that a tensor is said to be on."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    device: torch.device = getattr(tensor.untyped_storage(), "pretended", CPU)
    return device


def _placed(tensor: Tensor, device: torch.device) -> None:
    """Say where a tensor is, as far as such a tensor can be there."""
    if device.type == "mps" and tensor.dtype in DOUBLE:
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    tensor.untyped_storage().pretended = device  # type: ignore[attr-defined]


def _known(device: Any) -> torch.device:
    found = torch.device(device)
    return found if found.type == "cpu" else torch.device(found.type, found.index or 0)


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What every single operation is held to, those of a backward pass too."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made_on = CPU
        self.moving = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if self.moving:
            return out
        given = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, Tensor)]
        device = self._shared(func, args, given)
        for tensor in tree_flatten(out)[0]:
            if isinstance(tensor, Tensor) and device != CPU:
                _placed(tensor, device)
        generator = kwargs.get("generator")
        if generator is not None and generator.device.type != device.type:
            raise RuntimeError(f"{func}: a generator of the CPU for a tensor on {device}")
        return out

    def _shared(self, func: Any, args: Any, given: list[Tensor]) -> torch.device:
        if not given:
            return self.made_on
        name, first = func.overloadpacket.__name__, device_of(given[0])
        if name in ANYWHERE:
            return first
        if name in INDEXING:
            others = [device_of(t) for t in given[1:] if t.ndim]
            if first == CPU and any(d != CPU for d in others):
                raise RuntimeError(f"{func}: indices on {others} for a tensor on the CPU")
            values = args[2] if len(args) > 2 else None
            if values is not None and values.ndim and device_of(values) != first:
                raise RuntimeError(f"{func}: values on {device_of(values)} for a tensor on {first}")
            return first
        scalars = torch.Tag.pointwise in func.tags
        told = {device_of(t) for t in given if not (scalars and not t.ndim and device_of(t) == CPU)}
        if len(told) > 1 or (func._schema.is_mutable and told - {first}):
            where = ", ".join(f"{tuple(t.shape)} on {device_of(t)}" for t in given)
            raise RuntimeError(f"{func}: expected all tensors on the same device: {where}")
        return told.pop() if told else CPU


class Pretending(TorchFunctionMode):
    """Let tensors be on a device that is not there, as long as the block lasts."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = _Operations()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__":
            return self._told(func, args)
        given = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, Tensor)]
        if name in NUMPY and device_of(args[0]) != CPU and not kwargs.get("force"):
            raise TypeError(f"can't convert {device_of(args[0])} device type tensor to numpy")
        if name in MOVES:
            return self._moved(func, name, args, dict(kwargs))
        asked = kwargs.get("device")
        if asked is not None and torch.device(asked).type == "meta":
            return func(*args, **kwargs)
        if asked is not None:
            kwargs = {**kwargs, "device": CPU}
        away = (d for d in map(device_of, given) if d != CPU)
        with self.making(_known(asked) if asked is not None else next(away, CPU)):
            out = func(*args, **kwargs)
        if asked is not None or name in ("__deepcopy__", "new_tensor"):
            device = _known(asked) if asked is not None else device_of(args[0])
            tree_map_only(Tensor, lambda t: _placed(t, device), out)
        return out

    @contextmanager
    def making(self, device: torch.device) -> Iterator[None]:
        """Make what is made of nothing on a device: the zeros inside of `one_hot`."""
        before, self.operations.made_on = self.operations.made_on, device
        try:
            yield
        finally:
            self.operations.made_on = before

    def _told(self, func: Any, args: Any) -> Any:
        name = func.__self__.__name__
        if name == "device":
            return device_of(args[0])
        if name in ("is_cpu", "is_cuda", "is_mps"):
            return device_of(args[0]).type == name.removeprefix("is_")
        return func(*args)

    def _moved(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        asked = kwargs.pop("device", CPU if name == "cpu" else None)
        if name == "cuda":
            asked = "cuda"
        rest = list(args[1:])
        for at, arg in enumerate(rest):
            if isinstance(arg, str | torch.device):
                asked, rest[at] = arg, CPU
            elif isinstance(arg, Tensor):
                asked = device_of(arg)
        x = args[0]
        before = device_of(x) if isinstance(x, Tensor) else CPU
        after = before if asked is None else _known(asked)
        if before == after == CPU:
            return func(x, *rest, **kwargs)
        self.operations.moving = True
        try:
            out = func(x, *rest, **kwargs) if name not in ("cpu", "cuda") else x
            if before != after and out.untyped_storage()._cdata == x.untyped_storage()._cdata:
                out = out.clone()
        finally:
            self.operations.moving = False
        _placed(out, after)
        return out


@contextmanager
def pretend(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[None]:
    """Let one device of that kind be found, and tensors be on it, as long as the block lasts."""
    mode: Any = Pretending()
    run_backward: Any = vars(torch.autograd)["_engine_run_backward"]
    group: Any = vars(torch._C)["_group_tensors_by_device_and_dtype"]

    def backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        away = (d for d in map(device_of, outputs) if d != CPU)
        with mode.making(next(away, CPU)):
            return run_backward(outputs, *args, **kwargs)

    def grouped(lists: Any, indices: bool = False) -> Any:
        there = {t.dtype: device_of(t) for t in lists[0]}
        return {(there[key[1]], key[1]): found for key, found in group(lists, indices).items()}

    with monkeypatch.context() as patch, mode.operations, mode:
        patch.setattr("torch.autograd._engine_run_backward", backward)
        patch.setattr("torch._C._group_tensors_by_device_and_dtype", grouped)
        patch.setattr("torch.cuda.is_available", lambda: name == "cuda")
        patch.setattr("torch.cuda.device_count", lambda: int(name == "cuda"))
        patch.setattr("torch.backends.mps.is_available", lambda: name == "mps")
        patch.setattr("torch.cuda.device", lambda device: nullcontext())
        for kind in ("cuda", "mps"):
            patch.setattr(f"torch.{kind}.manual_seed", lambda seed: None)
            patch.setattr(f"torch.{kind}.get_rng_state", lambda device: torch.get_rng_state())
            patch.setattr(f"torch.{kind}.set_rng_state", lambda state, device: None)
        yield
