"""A model from whatever the user has: a name, a description, a module, or a function."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import torch
from pydantic import ValidationError
from torch import nn

from fedtail.errors import FedtailError, sentence
from fedtail.models.probe import last_executed
from fedtail.models.spec import ModelSpec, Shape
from fedtail.models.split_model import SplitModel

ModelLike = ModelSpec | str | Mapping[str, Any] | nn.Module | Callable[..., Any]
"""What `build` takes."""


def build(model: ModelLike, input_shape: Shape, num_classes: int) -> SplitModel:
    """Return a model for samples of this shape (without the batch) and this many classes.

    Parameters
    ----------
    model
        A `ModelSpec`; the name of one, or a table with ``name`` and its fields; a `SplitModel` or
        any `nn.Module`, which is copied with its weights and stays as it is; or a function that
        returns any of these. A function is given ``num_classes`` and ``input_shape`` if it has
        parameters of these names.
    input_shape, num_classes
        What the data are.

    Raises
    ------
    FedtailError
        If it is none of these, or does not fit the data (see `SplitModel.check`).
    """
    if isinstance(model, str | Mapping):
        model = _described(model)
    elif callable(model) and not isinstance(model, nn.Module):
        model = _called(model, input_shape=input_shape, num_classes=num_classes)
    if isinstance(model, ModelSpec):
        return model.build(input_shape, num_classes)
    if not isinstance(model, nn.Module):
        raise FedtailError(
            "a model is a name, a ModelSpec, an nn.Module or a function that returns one,"
            f" not {type(model).__name__}"
        )
    return _wrapped(copy.deepcopy(model), input_shape, num_classes)


def _described(model: str | Mapping[str, Any]) -> ModelSpec:
    try:
        return ModelSpec.inside(model)
    except ValidationError as error:
        raise FedtailError(sentence(error, "model")) from None


def _called(function: Callable[..., Any], **offered: Any) -> Any:
    parameters = inspect.signature(function).parameters
    given = {name: value for name, value in offered.items() if name in parameters}
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and name not in given
    ]
    if missing:
        raise FedtailError(
            f"the function that makes the model wants '{missing[0]}': only"
            f" {', '.join(sorted(offered))} can be given to it"
        )
    return function(**given)


def _wrapped(module: nn.Module, input_shape: Shape, num_classes: int) -> SplitModel:
    device = next((t.device for t in chain(module.parameters(), module.buffers())), None)
    # Drawn, not zeros: on zeros, a ReLU behind the classifier could go unnoticed.
    x = torch.randn(2, *input_shape, generator=torch.Generator().manual_seed(0)).to(device)
    split = (
        module if isinstance(module, SplitModel) else SplitModel(module, last_executed(module, x))
    )
    split.check(x, num_classes)
    return split
