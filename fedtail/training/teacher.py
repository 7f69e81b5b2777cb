"""The received model as a teacher of the one that a client trains."""

from __future__ import annotations

import copy
from typing import Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fedtail.models.split_model import SplitModel
from fedtail.training.local import normalisable

_TEACHERS: WeakKeyDictionary[SplitModel, SplitModel] = WeakKeyDictionary()
TeacherMode = Literal["train", "eval"]
"""Whether BatchNorm and dropout of a teacher are in training or in evaluation mode."""


def frozen_copy(model: SplitModel, mode: TeacherMode) -> SplitModel:
    """Return a copy whose weights and BatchNorm statistics never move.

    It is good until the next copy of the same model, which is the same object with other tensors:
    to copy a network takes longer than many a small batch.
    """
    teacher = _TEACHERS.get(model)
    if teacher is None or teacher.names() != model.names():
        teacher = _TEACHERS[model] = copy.deepcopy(model).requires_grad_(False)
        for norm in teacher.batch_norms():
            norm.momentum = 0.0
    teacher.load(dict(model.live()))
    return teacher.train(mode == "train")


@torch.no_grad()
def taught(teacher: SplitModel, x: Tensor) -> Tensor:
    """Return the teacher's logits ẑ."""
    with normalisable(teacher.batch_norms(), len(x)):
        logits: Tensor = teacher(x)
    return logits
