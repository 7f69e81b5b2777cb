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


def test_small_cnn_with_group_norm_is_faster_in_the_other_layout_on_a_cpu() -> None:
    grouped = SmallCNN(norm="group").build((3, 8, 8), 2)

    assert not runs_on_images(grouped, CPU)
    assert runs_on_images(grouped, torch.device("cuda"))
    assert runs_on_images(SmallCNN(norm="batch").build((3, 8, 8), 2), CPU)
    assert runs_on_images(nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8)), CPU)


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
