"""Channels last where it is faster, and never where it would corrupt memory."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedtail import Experiment, run
from fedtail.device import runs_on_images
from fedtail.models import build
from fedtail.models.cnn import SmallCNN
from fedtail.models.resnet import ResNet8

CPU = torch.device("cpu")


def test_convolutions_run_with_channels_last() -> None:
    assert runs_on_images(build("resnet8", (3, 8, 8), 2), CPU)
    assert not runs_on_images(build("mlp", (3, 8, 8), 2), CPU)
    assert not runs_on_images(build("resnet8", (3, 8, 8), 2), torch.device("mps"))


def test_group_norm_stays_in_the_other_layout_unless_pytorch_pools() -> None:
    norm, pool = nn.GroupNorm(2, 8), nn.MaxPool2d(2)

    def chosen(*more: nn.Module) -> bool:
        return runs_on_images(nn.Sequential(nn.Conv2d(3, 8, 3), *more), CPU)

    assert not chosen(norm) and chosen(norm, pool) and chosen(pool)
    assert not runs_on_images(SmallCNN(norm="group").build((3, 8, 8), 2), CPU)
    assert runs_on_images(SmallCNN(norm="batch").build((3, 8, 8), 2), CPU)
    assert runs_on_images(nn.Sequential(nn.Conv2d(3, 8, 3), norm), torch.device("cuda"))


@pytest.mark.parametrize(
    ("layer", "safe"),
    [
        (nn.Conv2d(4, 8, 1, stride=2), False),
        (nn.Conv2d(32, 32, 1, stride=2, groups=8), False),
        (nn.Conv2d(4, 8, 1), True),
        (nn.Conv2d(4, 8, 3, stride=2), True),
        (nn.Conv2d(16, 32, 1, stride=2), True),
    ],
)
def test_strided_1x1_convolutions_of_few_channels_do_not(layer: nn.Conv2d, safe: bool) -> None:
    assert runs_on_images(nn.Sequential(layer), CPU) is safe
    assert runs_on_images(nn.Sequential(layer), torch.device("cuda"))


def test_a_narrow_resnet_trains() -> None:
    assert run(Experiment(model=ResNet8(width=4), clients=2, rounds=1)).history
