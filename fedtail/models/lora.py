"""LoRA: small matrices beside frozen layers, trained in their place and merged when it is over.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022: W + (α / r) B A, with B
zero at first. The layers are those of peft.
"""

from __future__ import annotations

import copy
import re
from typing import Any, NamedTuple

from torch import nn
from torch.nn.utils import parametrize

from fedtail.errors import FedtailError, missing_extra
from fedtail.models.probe import hold_still
from fedtail.models.split_model import SplitModel

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
SYNTAX = re.compile(r"lora:r=([1-9]\d*)(?:,alpha=([1-9]\d*))?")


class Rank(NamedTuple):
    """The rank r of the update, and α: the update counts α / r."""

    r: int
    alpha: int


def rank_of(choice: str) -> Rank:
    """Read "lora:r=8" or "lora:r=8,alpha=16"; α is twice the rank unless it is said."""
    found = SYNTAX.fullmatch(choice.replace(" ", ""))
    if found is None:
        raise FedtailError(f"'{choice}' is refused: give lora:r=8, or lora:r=8,alpha=16")
    r = int(found[1])
    return Rank(r, int(found[2] or 2 * r))


def with_lora(model: SplitModel, choice: str) -> SplitModel:
    """Return a model whose linear and convolution layers have LoRA's matrices beside them.

    They and the heads are trained. Grouped convolutions, and layers that others reach into, stay
    frozen as they are.
    """
    rank = rank_of(choice)
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise missing_extra(f"train = '{choice}'", "the package peft", "pretrained") from None
    made = copy.deepcopy(model)
    heads = {name for name in made.trainable() if _within(name, made)}
    names = [name for name, layer in made.module.named_modules() if _fits(name, layer, made)]
    if not names:
        raise FedtailError(
            f"train = '{choice}' finds no linear or convolution layer before the classifier"
        )
    config = LoraConfig(
        r=rank.r, lora_alpha=rank.alpha, target_modules="|".join(map(re.escape, names))
    )
    inject_adapter_in_model(config, made.module)
    for name, parameter in made.module.named_parameters():
        parameter.requires_grad_(name in heads or ".lora_" in f".{name}")
    hold_still(made.module)
    made.note_frozen()
    return made


def merged_model(model: SplitModel) -> SplitModel:
    """Return the plain network, every W + (α / r) B A one matrix; the model itself without LoRA."""
    if not any(_adapted(layer) for layer in model.module.modules()):
        return model
    made = copy.deepcopy(model)
    layers: list[tuple[str, Any]] = [
        (name, layer) for name, layer in made.module.named_modules() if _adapted(layer)
    ]
    for name, layer in layers:
        layer.merge()
        parent, _, leaf = name.rpartition(".")
        setattr(made.module.get_submodule(parent), leaf, layer.get_base_layer())
    vars(made.module).pop("peft_config", None)
    made.note_frozen()
    return made


def _adapted(layer: nn.Module) -> bool:
    return hasattr(layer, "lora_A") and hasattr(layer, "get_base_layer")


def _within(name: str, model: SplitModel) -> bool:
    return any(not head or f"{name}.".startswith(f"{head}.") for head in model.head_names)


def _fits(name: str, layer: nn.Module, model: SplitModel) -> bool:
    """Whether a layer can have matrices beside it."""
    known = isinstance(layer, LAYERS) and getattr(layer, "groups", 1) == 1
    # Attention of torch reads the weight of its last layer and never calls it.
    called = type(layer).__name__ != "NonDynamicallyQuantizableLinear"
    trained = any(parameter.requires_grad for parameter in layer.parameters())
    plain = not parametrize.is_parametrized(layer)
    return known and called and trained and plain and not _within(name, model)
