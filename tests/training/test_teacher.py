"""A teacher stays as it was received, in the mode that was chosen."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedtail.models import SplitModel
from fedtail.training.teacher import TeacherMode, frozen_copy, taught

# The mean 6 and the spread differ from the initial statistics (0, 1) of BatchNorm.
X = torch.tensor([[3.0], [5.0], [9.0], [7.0]])


def normed() -> SplitModel:
    return SplitModel(nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 2)))


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_it_never_moves(mode: TeacherMode) -> None:
    # Prepare
    model = normed()
    received = model.tensors()
    teacher = frozen_copy(model, mode)
    before = taught(teacher, X)

    # Execute: it is asked again, and the student moves.
    with torch.no_grad():
        model.module.get_parameter("1.weight").add_(1.0)
    again = taught(teacher, X)

    # Assert
    assert torch.equal(again, before)
    assert not again.requires_grad
    assert not any(p.requires_grad for p in teacher.parameters())
    assert all(p.requires_grad for p in model.parameters())
    for name, tensor in teacher.tensors().items():
        assert name.endswith("num_batches_tracked") or torch.equal(tensor, received[name])


def test_its_mode_is_the_one_chosen() -> None:
    # In training mode a batch is normalised by itself, to the mean 0; in evaluation mode, with the
    # statistics (0, 1), it keeps the mean 6 but for ε = 1e-5 in the root.
    model = normed()
    for mode, mean in (("train", 0.0), ("eval", 6.0)):
        teacher = frozen_copy(model, "train" if mode == "train" else "eval")
        assert float(teacher.features(X).mean()) == pytest.approx(mean, abs=1e-4)


def test_one_sample_uses_the_running_statistics() -> None:
    model = normed()
    teacher = frozen_copy(model, "train")
    assert torch.equal(taught(teacher, X[:1]), model.eval()(X[:1]))
    assert all(norm.training for norm in teacher.batch_norms())


def test_the_next_copy_of_a_model_is_the_same_object_with_its_new_tensors() -> None:
    model = normed()
    first = frozen_copy(model, "train")
    taught(first, X)  # BatchNorm counts its batches
    with torch.no_grad():
        model.module.get_parameter("1.weight").add_(1.0)
    second = frozen_copy(model, "eval")
    assert second is first and second is not frozen_copy(normed(), "eval")
    assert all(torch.equal(t, model.tensors()[name]) for name, t in second.tensors().items())


def test_a_model_with_a_new_head_has_a_new_teacher() -> None:
    model = normed()
    first = frozen_copy(model, "train")
    model.extra_heads["more"] = nn.Linear(1, 2)
    assert "more.weight" in frozen_copy(model, "train").names() - first.names()
