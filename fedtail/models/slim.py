"""A block of a model at a part of its width, with the block's own weights.

Yu, Yang, Xu, Yang, Huang, "Slimmable Neural Networks", ICLR 2019: the narrow network is made of the
first channels of every layer.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from fedtail.errors import FedtailError
from fedtail.models.blocks import PadShortcut
from fedtail.models.split_model import SplitModel

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def last_block(model: SplitModel) -> str:
    """Return the name of the last child with weights before the classifier: a ResNet's last stage.

    Children that hold the classifier itself, or only normalise, do not count.
    """
    head = model.classifier_name
    names = [
        name
        for name, child in model.module.named_children()
        if not f"{head}.".startswith(f"{name}.")
        and any(parameter.ndim > 1 for parameter in child.parameters())
    ]
    if not names:
        raise FedtailError(
            f"the model has no block with weights before its classifier '{head}' that could be"
            " slimmed; name one of its layers as method.block"
        )
    return names[-1]


class Slim:
    """A block as it is with the first channels only.

    Convolutions, linear layers and normalisations are cut; what has no weights stays. Gradients
    reach the block's weights. BatchNorm uses the statistics of the batch and remembers nothing, so
    that the running statistics stay those of the full width.

    Parameters
    ----------
    block
        Made of convolutions, linear layers and BatchNorm, with whatever has no weights between.
    width
        The part of the channels that is kept, at least one.
    """

    def __init__(self, block: nn.Module, width: float) -> None:
        if type(block).forward is nn.Module.forward:
            raise FedtailError(
                f"a {type(block).__name__} cannot be slimmed, it is only a list of its parts; name"
                " one of them as method.block"
            )
        self.block = block
        self.width = width
        self.form = copy.deepcopy(block)
        self.cuts: dict[str, tuple[slice, ...]] = {}
        for path, layer in self.form.named_modules():
            self._cut(f"{path}." if path else "", layer)

    def channels(self, count: int) -> int:
        """Return how many of so many channels are kept."""
        return max(1, round(self.width * count))

    def __call__(self, x: Tensor) -> Tensor:
        """Return the narrow block's output for the first channels of its input."""
        # `form` lends only its structure. Its own weights are never used: `functional_call` puts
        # slices of the live ones in their place, so that gradients reach those.
        for layer, form in zip(self.block.modules(), self.form.modules(), strict=True):
            form.training = layer.training
        live = {**dict(self.block.named_parameters()), **dict(self.block.named_buffers())}
        tensors = {name: live[name][cut] for name, cut in self.cuts.items()}
        for name, _ in self.block.named_buffers():
            # A copy: in training BatchNorm writes into the tensors that it is given.
            tensors[name] = tensors.get(name, live[name]).clone()
        out: Tensor = functional_call(self.form, tensors, (x[:, : self.channels(x.shape[1])],))
        return out

    def _cut(self, path: str, layer: nn.Module) -> None:
        own = [name for name, _ in layer.named_parameters(recurse=False)]
        if isinstance(layer, PadShortcut):
            self._narrow(layer)
        elif isinstance(layer, nn.Linear) or (
            isinstance(layer, CONVOLUTIONS) and layer.groups == 1
        ):
            rows, columns = (slice(self.channels(n)) for n in layer.weight.shape[:2])
            # Of B A all of the rank is kept: a part of the channels of W + B A is one of both.
            rows = slice(None) if "lora_A." in path else rows
            columns = slice(None) if "lora_B." in path else columns
            self.cuts[f"{path}weight"] = (rows, columns)
            if layer.bias is not None:
                self.cuts[f"{path}bias"] = (rows,)
        elif isinstance(layer, _BatchNorm):
            kept = (slice(self.channels(layer.num_features)),)
            statistics = ["running_mean", "running_var"] if layer.track_running_stats else []
            self.cuts |= {path + name: kept for name in (*own, *statistics)}
        elif own:
            raise FedtailError(
                f"'{path.removesuffix('.')}', a {type(layer).__name__}, cannot be slimmed: a block"
                " may have convolutions (of one group), linear layers and BatchNorm"
            )

    def _narrow(self, shortcut: PadShortcut) -> None:
        new = self.channels(shortcut.outputs) - self.channels(shortcut.inputs)
        shortcut.before, shortcut.after = new // 2, new - new // 2


def transmitting_matrix(before: Tensor, after: Tensor) -> Tensor:
    """Return F_in F_outᵀ / (number of places), (batch, channels in, channels out).

    The input is averaged down to the places of the output if it has more.
    """
    if before.ndim != after.ndim:
        raise FedtailError(
            f"a block from {tuple(before.shape)} to {tuple(after.shape)} has no transmitting"
            " matrix: input and output must have channels and places alike"
        )
    if before.shape[2:] != after.shape[2:]:
        before = nn.functional.interpolate(before, list(after.shape[2:]), mode="area")
    before, after = (t.reshape(*t.shape[:2], -1) for t in (before, after))
    return before @ after.transpose(1, 2) / before.shape[2]


def top_singular_value(matrices: Tensor, iterations: int = 10) -> Tensor:
    """Return the largest singular value of each matrix, by power iteration on A Aᵀ from ones.

    With u found, σ = ‖Aᵀ u‖: its gradient at fixed u, u vᵀ, is that of the singular value.
    """
    with torch.no_grad():
        u = torch.ones(*matrices.shape[:-1], 1, device=matrices.device)
        for _ in range(iterations):
            u = nn.functional.normalize(u, dim=1)
            u = matrices @ (matrices.transpose(1, 2) @ u)
        u = nn.functional.normalize(u, dim=1)
    values: Tensor = torch.linalg.vector_norm(matrices.transpose(1, 2) @ u, dim=(1, 2))
    return values
