"""Looking at a module without changing it: its last layer, one trial run, its tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fedtail.errors import FedtailError
from fedtail.models.heads import CosineHead

M = TypeVar("M", bound=nn.Module)
R = TypeVar("R")
STILL = "_fedtail_still"


def last_registered(module: nn.Module) -> str:
    """Return the dotted name of the last linear layer, in the order they were registered."""
    names = list(_linear_layers(module).values())
    if not names:
        raise FedtailError(
            "the model has no nn.Linear; name its classifier: SplitModel(model, classifier=...)"
        )
    return names[-1]


def last_executed(module: nn.Module, x: Tensor) -> str:
    """Return the dotted name of the last linear layer to run on this batch."""
    names = _linear_layers(module)
    ran: list[nn.Module] = []

    def note(layer: nn.Module, args: tuple[Any, ...]) -> None:
        ran.append(layer)

    hooks = [layer.register_forward_pre_hook(note) for layer in names]
    try:
        trial(module, x, module)
    finally:
        for hook in hooks:
            hook.remove()
    return names[ran[-1]] if ran else last_registered(module)


def trial(module: nn.Module, x: Tensor, run: Callable[[Tensor], R]) -> R:
    """Return ``run(x)`` with `module` in evaluation mode, which is put back as it was."""
    modes = [(layer, layer.training) for layer in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            return run(x)
    except FedtailError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = str(error).partition("\n")[0]
        raise FedtailError(
            f"the model does not take a batch of shape {tuple(x.shape)}: {reason}"
        ) from error
    finally:
        for layer, mode in modes:
            layer.training = mode


def live_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Give what ``module.state_dict()`` holds, in its order, not detached and four times faster."""
    for prefix, layer in module.named_modules(remove_duplicate=False):
        start = f"{prefix}." if prefix else ""
        for name, parameter in layer._parameters.items():
            if parameter is not None:
                yield start + name, parameter
        for name, buffer in layer._buffers.items():
            if buffer is not None and name not in layer._non_persistent_buffers_set:
                yield start + name, buffer


def passing_buffers(module: nn.Module) -> dict[tuple[str, str], Tensor | None]:
    """Return copies of the buffers that are not saved, by layer and name.

    They are in no update. Those of one client must not be there for the next.
    """
    return {
        (prefix, name): None if (buffer := layer._buffers[name]) is None else buffer.cpu().clone()
        for prefix, layer in module.named_modules()
        for name in sorted(layer._non_persistent_buffers_set)
    }


def put_back(module: nn.Module, buffers: Mapping[tuple[str, str], Tensor | None]) -> None:
    """Give the buffers that are not saved the values that they had."""
    there = next((t.device for t in chain(module.parameters(), module.buffers())), None)
    for (prefix, name), value in buffers.items():
        held = module.get_submodule(prefix)._buffers
        now = held[name]
        if value is None or now is None:
            held[name] = value if value is None else value.to(there, copy=True)
        elif now.shape == value.shape:
            now.copy_(value)
        else:
            held[name] = value.to(now.device, copy=True)


def frozen_layers(module: nn.Module) -> tuple[str, ...]:
    """Return the dotted names of the layers that hold parameters, none of which needs gradients.

    All that stands inside such a layer is among them, with parameters or without, and what
    `hold_still` marked.
    """
    names: list[str] = []
    for name, layer in module.named_modules():
        inside = any(not part or name.startswith(f"{part}.") for part in names)
        held = [parameter.requires_grad for parameter in layer.parameters()]
        if inside or STILL in vars(layer) or (held and not any(held)):
            names.append(name)
    return tuple(names)


def hold_still(module: nn.Module) -> None:
    """Mark the layers without parameters that come after a frozen one, in order of registration.

    Those before the first layer with parameters go with that. The mark is on the layer, so that it
    is kept in whatever a method makes of the network.
    """
    leaves = [layer for layer in module.modules() if next(layer.children(), None) is None]
    moves = [[p.requires_grad for p in layer.parameters()] for layer in leaves]
    still = not any(next(filter(None, moves), ()))
    for layer, held in zip(leaves, moves, strict=True):
        still = not any(held) if held else still
        if still and not held:
            vars(layer)[STILL] = True


def frozen_names(module: nn.Module, layers: Sequence[str]) -> frozenset[str]:
    """Return the names of all tensors that training leaves as they are."""
    still = {
        name for name, p in module.named_parameters(remove_duplicate=False) if not p.requires_grad
    }
    for layer in layers:
        start = f"{layer}." if layer else ""
        still |= {start + name for name, _ in live_tensors(module.get_submodule(layer))}
    return frozenset(still)


def reset(module: M) -> M:
    """Initialise again every layer that knows how (`reset_parameters`), and return the module.

    Frozen layers stay as they are: nobody would train them again.
    """
    still = frozen_layers(module)
    for name, layer in module.named_modules():
        again = getattr(layer, "reset_parameters", None)
        if callable(again) and name not in still:
            again()
        if ".lora_B." in f".{name}":  # a new update begins at zero
            nn.init.zeros_(layer.get_parameter("weight"))
    return module


def _linear_layers(module: nn.Module) -> dict[nn.Module, str]:
    return {
        layer: name
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear | CosineHead)
    }
