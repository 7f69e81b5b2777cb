"""Balanced sets, and features that leave no trace."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fedtail.models import SplitModel
from fedtail.training.balanced import balanced_set, constant_features


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_every_class_with_enough_samples_is_there_equally_often() -> None:
    labels = torch.tensor([0, 0, 0, 1, 2, 2, 4, 4, 4, 4])
    index = balanced_set(labels, 2, seeded())
    assert labels[index].tolist() == [0, 0, 2, 2, 4, 4]
    assert len(set(index.tolist())) == 6


def test_every_sample_of_a_class_is_equally_likely() -> None:
    # Two of four, 4000 times: each 2000 times, with a standard deviation of sqrt(1000) = 32.
    generator, labels = seeded(), torch.tensor([1, 0, 0, 0, 0])
    drawn = torch.cat([balanced_set(labels, 2, generator) for _ in range(4000)])
    assert torch.bincount(drawn, minlength=5).tolist() == pytest.approx([0, *[2000] * 4], abs=130)


@pytest.mark.parametrize("labels", [[], [0], [0, 1, 2]])
def test_it_may_be_empty(labels: list[int]) -> None:
    assert not len(balanced_set(torch.tensor(labels, dtype=torch.int64), 2, seeded()))


def test_the_draw_repeats() -> None:
    labels = torch.zeros(50, dtype=torch.int64)
    one, two, other = (balanced_set(labels, 5, seeded(s)) for s in (1, 1, 2))
    assert one.tolist() == two.tolist() != other.tolist()


def normed() -> SplitModel:
    return SplitModel(nn.Sequential(nn.BatchNorm1d(1, affine=False), nn.Linear(1, 2)))


@pytest.mark.parametrize(
    ("statistics", "features", "mean"),
    [
        # x = 1, 3: own mean 2 and variance 1; the running ones are 0 and 1, with momentum 0.1.
        ("batch", [-1.0, 1.0], 0.0),
        ("update", [-1.0, 1.0], 0.2),
        ("running", [1.0, 3.0], 0.0),
    ],
)
def test_which_statistics_are_used_and_kept(
    statistics: Any, features: list[float], mean: float
) -> None:
    model = normed().train()
    found = constant_features(model, torch.tensor([[1.0], [3.0]]), statistics)
    assert found.flatten().tolist() == pytest.approx(features, abs=1e-4)
    assert not found.requires_grad
    assert float(model.tensors()["0.running_mean"]) == pytest.approx(mean)
    assert int(model.tensors()["0.num_batches_tracked"]) == (1 if mean else 0)
    # The layer goes on as before.
    assert all(layer.training for layer in model.modules())
    assert model.batch_norms()[0].track_running_stats


@pytest.mark.parametrize("statistics", ["batch", "update", "running"])
def test_one_sample_is_normalised_by_the_running_statistics(statistics: Any) -> None:
    model = normed().train()
    found = constant_features(model, torch.tensor([[3.0]]), statistics)
    assert float(found) == pytest.approx(3, abs=1e-4)
    assert float(model.tensors()["0.running_mean"]) == 0


def test_a_layer_that_was_in_evaluation_mode_stays_there() -> None:
    model = normed().train()
    model.batch_norms()[0].eval()
    constant_features(model, torch.tensor([[1.0], [3.0]]), "running")
    assert not model.batch_norms()[0].training
    assert model.training
