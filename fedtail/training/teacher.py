"""The received model as a teacher of the one that a client trains."""

from __future__ import annotations

import copy
from typing import Literal

import torch
from torch import Tensor

from fedtail.models.split_model import SplitModel
from fedtail.training.local import normalisable

TeacherMode = Literal["train", "eval"]
"""Whether BatchNorm and dropout of a teacher are in training or in evaluation mode."""


def frozen_copy(model: SplitModel, mode: TeacherMode) -> SplitModel:
    """Return a copy whose weights and BatchNorm statistics never move."""
    teacher = copy.deepcopy(model).requires_grad_(False).train(mode == "train")
    for norm in teacher.batch_norms():
        norm.momentum = 0.0
    return teacher


@torch.no_grad()
def taught(teacher: SplitModel, x: Tensor) -> Tensor:
    """Return the teacher's logits ẑ."""
    with normalisable(teacher.batch_norms(), len(x)):
        logits: Tensor = teacher(x)
    return logits
