"""A balanced set of local samples, and passing it through a model that is being trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor
from torch.nn.modules.dropout import _DropoutNd

from fedtail.models.split_model import SplitModel
from fedtail.training.local import normalisable

NormStatistics = Literal["batch", "update", "running"]
"""What BatchNorm uses: the batch's own; its own, which it remembers; or the running ones."""


def balanced_set(labels: Tensor, per_class: int, generator: torch.Generator) -> Tensor:
    """Return positions: T random samples of every class that has at least T."""
    # Shuffled, then sorted by class with ties left as they are: each class stands together, in a
    # random order, so that its first T are T random ones. One draw serves all classes.
    order = torch.randperm(len(labels), generator=generator)
    order = order[torch.argsort(labels[order], stable=True)]
    y, counts = labels[order], torch.bincount(labels)
    # Where a sample stands within its class: its place less the place where the class begins.
    rank = torch.arange(len(y)) - (counts.cumsum(0) - counts)[y]
    return order[(rank < per_class) & (counts[y] >= per_class)]


def features_stay(model: SplitModel) -> bool:
    """Whether nothing before the classifier moves in training, nor is drawn."""
    heads = [model.classifier, *model.extra_heads.values()]
    own = {id(parameter) for head in heads for parameter in head.parameters()}
    drawn = any(isinstance(layer, _DropoutNd) and layer.p for layer in model.modules())
    trained = all(id(parameter) in own for parameter in model.trainable().values())
    return trained and not drawn and not model.batch_norms()


def constant_features(model: SplitModel, x: Tensor, statistics: NormStatistics) -> Tensor:
    """Return the features of a batch, with no gradient to what made them.

    With "batch" and "update" the model stays in training mode, with its dropout; "running" is
    evaluation mode. Only "update" changes a buffer.
    """
    with torch.no_grad(), _normalising(model, statistics, len(x)):
        return model.features(x)


@contextmanager
def _normalising(model: SplitModel, statistics: NormStatistics, size: int) -> Iterator[None]:
    norms = model.batch_norms()
    modes = [(layer, layer.training) for layer in model.modules()]
    moving = [norm for norm in norms if norm.track_running_stats]
    if statistics == "running":
        model.eval()
    for norm in moving:
        # In training mode this is all that keeps a layer from remembering the batch.
        norm.track_running_stats = statistics == "update"
    try:
        with normalisable(norms, size):
            yield
    finally:
        for norm in moving:
            norm.track_running_stats = True
        for layer, mode in modes:
            layer.training = mode
