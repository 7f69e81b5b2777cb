"""Where networks run: device, precision of the body, memory layout of images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from fedtail.errors import FedtailError
from fedtail.models.pooling import HalvingMax
from fedtail.models.probe import trial
from fedtail.models.split_model import SplitModel

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""What a body may compute in, by name: a server's word is looked up, and nothing else of torch."""


def choose_device(name: str) -> torch.device:
    """Return the device of that name; "auto" takes a GPU if there is one."""
    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    available = {
        **({"cuda": True} if cards else {}),
        **({"mps": True} if torch.backends.mps.is_available() else {}),
        "cpu": True,
        **{f"cuda:{number}": True for number in range(cards)},
    }
    if name == "auto":
        return torch.device(next(iter(available)))
    if name not in available:
        here = ", ".join([*available, "auto"])
        raise FedtailError(f"device '{name}' is not available here (available: {here})")
    return torch.device(name)


def emulates_bfloat16(device: torch.device) -> bool:
    """Whether a processor is known to compute in bfloat16 by other means: 0.1 of the speed."""
    has: Mapping[str, Any] = torch.cpu.get_capabilities() if device.type == "cpu" else {}
    own = ("avx512_bf16", "amx_bf16")
    return has.get("architecture") == "x86_64" and not any(has.get(name) for name in own)


def runs_on_images(model: nn.Module, device: torch.device) -> bool:
    """Tell whether the network convolves images, which is faster with channels last.

    Measured on CPUs from 1.0 to 1.4 times (`docs/architecture.md`); on mps it is not, nor on CPUs
    for networks that pool by `HalvingMax`, which is made for the other layout.
    """
    layers = list(model.modules())
    convolutions = [layer for layer in layers if isinstance(layer, nn.Conv2d)]
    if device.type == "mps" or not convolutions:
        return False
    slow = any(isinstance(layer, HalvingMax) for layer in layers)
    unsafe = any(_corrupts_memory(layer) for layer in convolutions)
    return device.type != "cpu" or not (slow or unsafe)


def _corrupts_memory(layer: nn.Conv2d) -> bool:
    """Whether torch 2.13 on a CPU writes out of bounds in this layer's backward pass.

    It does with channels last, a stride, a 1x1 kernel and two to six input channels (a ResNet-8 of
    width 4); the bound leaves room for machines with wider registers.
    """
    few = layer.in_channels // layer.groups < 16
    return few and layer.kernel_size == (1, 1) and max(layer.stride) > 1


def try_there(model: SplitModel, x: Tensor, device: torch.device) -> None:
    """Refuse a network that has left something behind where it was made.

    Parameters
    ----------
    x
        A batch that it took before it was put on the device.
    """
    if x.device.type == device.type:
        return
    try:
        trial(model, x.to(device), model)
    except FedtailError as error:
        raise FedtailError(
            f"on '{device}' {error} (only parameters and buffers of a module go to its device: "
            "keep other tensors with register_buffer)"
        ) from error


def to_device(
    models: Iterable[SplitModel], device: torch.device, images: bool, precision: str = "float32"
) -> None:
    """Put networks where they run, those that convolve images with channels last.

    Raises
    ------
    FedtailError
        If one does not fit there: float64 on mps, no memory.
    """
    for model in models:
        try:
            model.to(device)
        except (RuntimeError, TypeError) as error:
            reason = str(error).partition("\n")[0]
            raise FedtailError(f"the model cannot be put on '{device}': {reason}") from error
        model.compute_in(PRECISIONS[precision])
        if images:
            cast(Any, model).to(memory_format=torch.channels_last)  # torch's stub lacks it
