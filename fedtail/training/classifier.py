"""The classifier apart from the rest: its names in a model, a new one, and when it is re-trained.

RedGrape, CReFF, CCVR and cRT all train an encoder first (or beside) and a classifier on top of it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedtail.models.split_model import SplitModel
from fedtail.protocol import Server, Tensors
from fedtail.training.federated_features import Head


def prefix(model: SplitModel) -> str:
    """Return what the names of the classifier's tensors begin with in the model."""
    return f"{model.classifier_name}." if model.classifier_name else ""


def named(head: Head, model: SplitModel) -> dict[str, Tensor]:
    """Return a linear head under the names of the model's classifier."""
    names = {"weight": head.weight} if head.bias is None else head._asdict()
    return {f"{prefix(model)}{name}": tensor for name, tensor in names.items()}


def unnamed(head: Tensors, model: SplitModel) -> Head:
    """Return the head that `named` named; other tensors may stand beside it."""
    start = prefix(model)
    return Head(head[f"{start}weight"], head.get(f"{start}bias"))


def new_classifier(server: Server) -> dict[str, Tensor]:
    """Return a new classifier by its names in the model, drawn as torch draws linear layers.

    What the classifier has and does not train (a frozen factor) is left out.
    """
    model, generator = server.model, server.generator("head")
    bound = model.feature_dim**-0.5
    return {
        prefix(model) + name: torch.empty(t.shape).uniform_(-bound, bound, generator=generator)
        for name, t in model.classifier.named_parameters()
        if t.requires_grad
    }


def second_stage(round: int, rounds: int, fraction: float) -> bool:
    """Tell whether a round comes after the first `fraction` of the rounds.

    Unless the fraction is 1, a run of two rounds or more has at least one of either kind.
    """
    if fraction == 1:
        return False
    # The small subtrahend keeps a whole number whole: 0.55 x 100 is 55.00000000000001.
    first = math.ceil(fraction * rounds - 1e-9)
    return round > max(1, min(first, rounds - 1))
