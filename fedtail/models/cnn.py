"""Small convolutional networks."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

from pydantic import Field
from torch import nn

from fedtail.errors import FedtailError
from fedtail.models.pooling import HalvingMax
from fedtail.models.spec import ModelSpec, Shape
from fedtail.models.split_model import SplitModel


@ModelSpec.register("small_cnn")
class SmallCNN(ModelSpec):
    """Three 3×3 convolutions of doubling width, pooled to one value a channel: any image size."""

    width: int = Field(default=32, ge=4, multiple_of=4, description="channels of the first layer")
    norm: Literal["none", "batch", "group"] = Field(
        default="none",
        description="normalisation after each convolution (group: of four channels each)",
    )

    def build(self, input_shape: Shape, num_classes: int) -> SplitModel:
        """Return the network for images of at least 8x8."""
        inputs, _, _ = self.image(input_shape, smallest=8)
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for number, width in enumerate((self.width, 2 * self.width, 4 * self.width), 1):
            layers[f"conv{number}"] = nn.Conv2d(inputs, width, 3, padding=1)
            if self.norm != "none":
                layers[f"norm{number}"] = self._norm(width)
            if number < 3:  # before the ReLU, which then has a quarter to do
                layers[f"pool{number}"] = self._pool()
            layers[f"relu{number}"] = nn.ReLU()
            inputs = width
        layers |= {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
        layers["fc"] = nn.Linear(inputs, num_classes)
        return SplitModel(nn.Sequential(layers), "fc")

    def _norm(self, width: int) -> nn.Module:
        return nn.BatchNorm2d(width) if self.norm == "batch" else nn.GroupNorm(width // 4, width)

    def _pool(self) -> nn.Module:
        return HalvingMax() if self.norm == "group" else nn.MaxPool2d(2)


@ModelSpec.register("digits_cnn")
class DigitsCNN(ModelSpec):
    """For 8×8 images such as scikit-learn's digits: 13,706 parameters, no BatchNorm."""

    def build(self, input_shape: Shape, num_classes: int) -> SplitModel:
        """Return the network for 8x8 images."""
        channels, height, width = self.image(input_shape)
        if (height, width) != (8, 8):
            raise FedtailError(
                f"model '{self.name}' takes images of 8x8 pixels, not {height}x{width};"
                " 'small_cnn' takes any size"
            )
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            conv1=nn.Conv2d(channels, 16, 3, padding=1),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(16, 32, 3, padding=1),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(32 * 2 * 2, 64),
            relu3=nn.ReLU(),
            fc=nn.Linear(64, num_classes),
        )
        return SplitModel(nn.Sequential(layers), "fc")


@ModelSpec.register("mcmahan_cnn")
class McMahanCNN(ModelSpec):
    """The MNIST CNN of McMahan et al. 2017: two 5×5 convolutions and one hidden layer of 512."""

    def build(self, input_shape: Shape, num_classes: int) -> SplitModel:
        """Return the network; 28x28 in the paper."""
        channels, height, width = self.image(input_shape, smallest=4)
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            conv1=nn.Conv2d(channels, 32, 5, padding=2),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(32, 64, 5, padding=2),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(64 * (height // 4) * (width // 4), 512),
            relu3=nn.ReLU(),
            fc=nn.Linear(512, num_classes),
        )
        return SplitModel(nn.Sequential(layers), "fc")


@ModelSpec.register("cnn")
class CNN(ModelSpec):
    """The EMNIST CNN of Reddi et al. 2021, with dropout: what RedGrape trains on MNIST, FEMNIST."""

    def build(self, input_shape: Shape, num_classes: int) -> SplitModel:
        """Return the network; 28x28 in the paper."""
        channels, height, width = self.image(input_shape, smallest=6)
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            conv1=nn.Conv2d(channels, 32, 3),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(32, 64, 3),
            relu2=nn.ReLU(),
            pool=nn.MaxPool2d(2),
            dropout1=nn.Dropout(0.25),
            flatten=nn.Flatten(),
            fc1=nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128),
            relu3=nn.ReLU(),
            dropout2=nn.Dropout(0.5),
            fc=nn.Linear(128, num_classes),
        )
        return SplitModel(nn.Sequential(layers), "fc")
