"""Which part of a network is trained: all, the head, the last blocks, LoRA, or names.

Everything else is frozen: a part of the architecture that is neither sent nor averaged nor saved
with the state, in evaluation mode (see `SplitModel`).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from torch import nn

from fedtail.errors import FedtailError, suggestion
from fedtail.models.lora import rank_of, with_lora
from fedtail.models.probe import hold_still
from fedtail.models.split_model import SplitModel

CHOICES = "all, head, last:N, lora:r=8, or names of parameters such as 'layer4.* fc.*'"


def checked_choice(choice: str) -> str:
    """Return what may be trained as it was written, or say what is wrong with it."""
    if not choice.strip():
        raise FedtailError(f"say what is trained: {CHOICES}")
    if choice.startswith("last") and not re.fullmatch(r"last:[1-9]\d*", choice):
        raise FedtailError(f"'{choice}' is refused: give last:N with N at least 1, such as last:2")
    if choice.startswith("lora"):
        rank_of(choice)
    return choice


def with_trained(model: SplitModel, choice: str) -> SplitModel:
    """Return a model of which only the chosen part is trained; for "all" the model itself.

    What needs no gradient already stays frozen. A layer without parameters (dropout, a BatchNorm
    that only counts) goes with the layer before it.

    Parameters
    ----------
    model
        Any model.
    choice
        "all"; "head", the classifier; "last:N", the last N blocks of the network with the
        classifier as one; "lora:r=8", low-rank matrices beside frozen layers; or patterns for
        names of parameters or of layers, apart by spaces or commas.

    Raises
    ------
    FedtailError
        If nothing is chosen by a pattern, or not the whole classifier.
    """
    if checked_choice(choice) == "all":
        return model
    if choice.startswith("lora"):
        return with_lora(model, choice)
    made = copy.deepcopy(model)
    chosen = _chosen(made, choice)
    parameters = made.trainable()
    for name, parameter in parameters.items():
        parameter.requires_grad_(name in chosen)
    lost = [name for name in _of_heads(made, parameters) if name not in chosen]
    if lost:
        raise FedtailError(
            f"train = '{choice}' leaves '{lost[0]}' frozen, which is of the classifier and has to"
            f" learn your classes: add '{made.head_names[0]}.*'"
        )
    hold_still(made.module)
    made.note_frozen()
    return made


def named_blocks(model: SplitModel) -> list[list[str]]:
    """Return the names of the parameters of every block, from input to output.

    A block is what a network repeats (a residual block, a layer of a transformer) or, outside of
    those, one layer. A normalisation goes with the block before it; the heads are the last one.
    """
    heads = tuple(model.head_names)
    found: list[list[str]] = [[]]
    for prefix, layer in _units("", model.module):
        if any(_inside(prefix, head) for head in heads):
            continue
        names = [_join(prefix, name) for name, _ in layer.named_parameters()]
        if any(parameter.ndim > 1 for parameter in layer.parameters()):
            found.append(names)
        else:
            found[-1] += names
    return [part for part in [*found, _of_heads(model, model.trainable())] if part]


def _chosen(model: SplitModel, choice: str) -> set[str]:
    parameters = model.trainable()
    if choice == "head":
        return set(_of_heads(model, parameters))
    if choice.startswith("last:"):
        parts, n = named_blocks(model), int(choice.removeprefix("last:"))
        if n > len(parts):
            raise FedtailError(
                f"train = '{choice}' is more than the {len(parts)} blocks of the model"
            )
        return {name for part in parts[-n:] for name in part}
    chosen: set[str] = set()
    for pattern in re.split(r"[,\s]+", choice.strip(", ")):
        names = [n for n in parameters if fnmatchcase(n, pattern) or fnmatchcase(n, f"{pattern}.*")]
        if not names:
            near = suggestion(pattern, ["all", "head", *parameters])
            raise FedtailError(
                f"train: '{pattern}' names no parameter of the model that could be trained{near}"
                f" (give {CHOICES})"
            )
        chosen.update(names)
    return chosen


def _of_heads(model: SplitModel, names: Iterable[str]) -> list[str]:
    heads = model.head_names
    return [name for name in names if any(_inside(name, head) for head in heads)]


def _inside(name: str, layer: str) -> bool:
    return not layer or name == layer or name.startswith(f"{layer}.")


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _units(prefix: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Give the blocks of a module in the order they were registered."""
    for name, child in module.named_children():
        if next(child.parameters(), None) is None:
            continue
        path = _join(prefix, name)
        if isinstance(child, nn.Sequential | nn.ModuleList) or any(map(_repeats, child.modules())):
            yield from _units(path, child)
        else:
            yield path, child


def _repeats(module: nn.Module) -> bool:
    """Whether a module is a stack of blocks: two of one class that are made of layers."""
    if not isinstance(module, nn.Sequential | nn.ModuleList):
        return False
    kinds = [
        type(child)
        for child in module.children()
        if not isinstance(child, nn.Sequential | nn.ModuleList) and next(child.children(), None)
    ]
    return len(kinds) > len(set(kinds))
