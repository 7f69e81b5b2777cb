"""A model from whatever the user has: a name, a description, a module, or a function."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from torch import Tensor, nn

from fedtail.errors import FedtailError, sentence
from fedtail.models.probe import last_executed
from fedtail.models.spec import ModelSpec, Shape
from fedtail.models.split_model import SplitModel
from fedtail.plugins import first_line
from fedtail.protocol import Tensors

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
    # Drawn, not zeros: on zeros, a ReLU behind the classifier could go unnoticed.
    x = torch.randn(2, *input_shape, generator=torch.Generator().manual_seed(0))
    whole = torch.ones(x.shape, dtype=torch.int64)  # for what begins with an embedding
    return fitted(made(model, input_shape, num_classes), [x, whole], num_classes)[0]


def made(model: ModelLike, input_shape: Shape, num_classes: int) -> nn.Module:
    """Return the module that a name, a description, a module or a function stands for."""
    if isinstance(model, str | Mapping):
        model = _described(model)
    elif callable(model) and not isinstance(model, nn.Module):
        model = _called(model, input_shape=input_shape, num_classes=num_classes)
    if isinstance(model, ModelSpec):
        built = model.build(input_shape, num_classes)
        if model.weights:
            built.load(with_own_head(built, read_weights(model.weights)))
        return built
    if not isinstance(model, nn.Module):
        raise FedtailError(
            "a model is a name, a ModelSpec, an nn.Module or a function that returns one,"
            f" not {type(model).__name__}"
        )
    try:
        return copy.deepcopy(model)
    except RuntimeError as error:  # the older torch.nn.utils.weight_norm leaves what has no copy
        reason = str(error).partition(". ")[0]
        raise FedtailError(f"the network cannot be copied: {reason}") from None


def fitted(
    module: nn.Module, batches: Sequence[Tensor], num_classes: int
) -> tuple[SplitModel, Tensor]:
    """Return a module seen as features and classifier, and the first of the batches it takes.

    If it takes none, what it says of the first is raised.
    """
    refused: FedtailError | None = None
    device = next((t.device for t in chain(module.parameters(), module.buffers())), None)
    for x in (batch.to(device) for batch in batches):
        try:
            split = _split(module, x)
            split.check(x, num_classes)
        except FedtailError as error:
            refused = refused or error
        else:
            return split, x
    raise refused or FedtailError("no batch to try the model on")


def _split(module: nn.Module, x: Tensor) -> SplitModel:
    if isinstance(module, SplitModel):
        return module
    return SplitModel(module, last_executed(module, x))


def read_weights(path: str) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file or of a state dict saved by torch."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise FedtailError(f"model.weights: there is no file '{path}'")
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        tensors = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a file that is none fails in ways of its own
        raise FedtailError(
            f"model.weights: '{path}' is neither safetensors nor a state dict of tensors "
            f"({first_line(error)})"
        ) from None
    if not isinstance(tensors, Mapping) or not all(isinstance(t, Tensor) for t in tensors.values()):
        raise FedtailError(f"model.weights: '{path}' holds no state dict of tensors")
    return dict(tensors)


def with_own_head(model: SplitModel, tensors: Tensors) -> Tensors:
    """Return weights with the model's own head, if theirs is of other classes."""
    own = {n: t for n, t in model.tensors().items() if n.startswith(tuple(model.head_names))}
    fits = all(name in tensors and tensors[name].shape == t.shape for name, t in own.items())
    return tensors if fits else {**tensors, **own}


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
