"""The two networks of BalanceFL (Shuai et al., IPSN 2022)."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

import torch
from pydantic import Field
from torch import Tensor, nn

from fedtail.models.blocks import FanInConv, basic, pooled_network, small_stem, stages
from fedtail.models.heads import ScaledHead
from fedtail.models.spec import ModelSpec, Shape
from fedtail.models.split_model import SplitModel

_SCALE = "factor of all logits: 2 in the authors' run of BalanceFL on CIFAR-10, else 1"


class SideBySide(nn.ModuleList):
    """Modules that see the same input; their outputs are joined along the channels."""

    def forward(self, x: Tensor) -> Tensor:
        """Return all outputs, joined."""
        return torch.cat([branch(x) for branch in self], dim=1)


@ModelSpec.register("balancefl_resnet8")
class BalanceFLResNet8(ModelSpec):
    """Blocks of 64, 128, 256, then two of 256 side by side: 512 features, a head without bias."""

    scale: float = Field(default=1.0, gt=0, description=_SCALE)

    def build(self, input_shape: Shape, num_classes: int) -> SplitModel:
        """Return the network for images of at least 4x4."""
        channels, _, _ = self.image(input_shape, smallest=4)
        block = partial(basic, conv=FanInConv, pad=True)
        stem = small_stem(channels, 64, FanInConv)
        layers, _ = stages(stem, block, (64, 128, 256), (1, 1, 1))
        layers["layer4"] = SideBySide(block(256, 256, 1) for _ in range(2))
        return SplitModel(pooled_network(layers, ScaledHead(512, num_classes, self.scale)), "fc")


@ModelSpec.register("balancefl_dnn")
class BalanceFLDNN(ModelSpec):
    """The network for inertial sensor data: 256, 128, 256 with leaky ReLU and dropout."""

    scale: float = Field(default=1.0, gt=0, description=_SCALE)

    def build(self, input_shape: Shape, num_classes: int) -> SplitModel:
        """Return the network; the sample (1800 values in the paper) is flattened first."""
        layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        width = self.flat(input_shape)
        for number, hidden in enumerate((256, 128, 256), 1):
            layers[f"fc{number}"] = nn.Linear(width, hidden)
            layers[f"relu{number}"] = nn.LeakyReLU()
            layers[f"dropout{number}"] = nn.Dropout(0.1)
            width = hidden
        layers["fc"] = ScaledHead(width, num_classes, self.scale)
        return SplitModel(nn.Sequential(layers), "fc")
