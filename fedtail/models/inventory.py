"""What a model is made of, walked once and remembered as long as it is made of the same things."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import is_
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedtail.models.probe import live_tensors

CONTAINERS = nn.Sequential | nn.ModuleList | nn.ModuleDict


class Inventory:
    """The layers and tensors of a model: what walking through all layers finds.

    A walk takes as long as a small layer takes to compute, and a task needs five.

    Parameters
    ----------
    model
        The whole.
    parts
        Those of its modules whose tensors stand under their own names, one after the other.
    fixed
        The names of tensors that do not move in training.
    still
        The layers that stay in evaluation mode.

    Attributes
    ----------
    everything, live
        All tensors, and those that move in training, by name; a tied one under each of its names.
    parameters
        The parameters, frozen or not; a tied one under its first name.
    still, layers
        The layers that stay in evaluation mode, and all others, each once.
    norms
        The BatchNorm layers of the others.
    own_modes
        Whether a layer has a way of its own to change between training and evaluation.
    """

    def __init__(
        self,
        model: nn.Module,
        parts: Sequence[nn.Module],
        fixed: frozenset[str],
        still: Iterable[nn.Module],
    ) -> None:
        self.everything = dict(chain.from_iterable(map(live_tensors, parts)))
        self.live = {name: t for name, t in self.everything.items() if name not in fixed}
        self.parameters = {n: p for part in parts for n, p in part.named_parameters()}
        self.still, every = list(still), list(model.modules())
        moving = set(every).difference(self.still)
        self.layers = [layer for layer in every if layer in moving]
        self.norms = [layer for layer in self.layers if isinstance(layer, _BatchNorm)]
        self.own_modes = any(type(layer).train is not nn.Module.train for layer in every[1:])
        self._held = [seen for layer in every for seen in _held(layer)]

    @property
    def stands(self) -> bool:
        """Whether the model still has these layers and tensors, and no others."""
        for now, then in self._held:
            if len(now) != len(then) or not all(map(is_, now.values(), then)):
                return False
        return True


def _held(
    layer: nn.Module,
) -> Iterable[tuple[Mapping[str, Any], tuple[nn.Module | Tensor | None, ...]]]:
    """Give what a layer holds, as it would change if something were replaced, added or removed."""
    tensors = (layer._parameters, layer._buffers)
    # Nobody gives a layer such as ReLU its first weight later; an empty list may be filled.
    children = (layer._modules,) if layer._modules or isinstance(layer, CONTAINERS) else ()
    held: Mapping[str, nn.Module | Tensor | None]
    for held in (*children, *(tensors if any(tensors) else ())):
        yield held, tuple(held.values())
