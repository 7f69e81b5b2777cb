"""A small convolutional network for signals: heartbeats, inertial sensors, any sampled series."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

from pydantic import Field
from torch import Tensor, nn

from fedtail.errors import FedtailError
from fedtail.models.spec import ModelSpec, Shape
from fedtail.models.split_model import SplitModel


class ChannelsFirst(nn.Module):
    """Gives a lone series its channel axis, and turns (time, channels) into (channels, time)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return a batch of (channels, time)."""
        return x[:, None] if x.dim() == 2 else x.transpose(1, 2)


@ModelSpec.register("signal_cnn")
class SignalCNN(ModelSpec):
    """Three convolutions along time, of doubling width, pooled to one value a channel.

    A sample is (time,) for one sensor or (time, channels) for several.
    """

    width: int = Field(default=16, ge=4, multiple_of=4, description="channels of the first layer")
    kernel: int = Field(default=7, ge=1, description="time steps that a convolution sees; odd")
    norm: Literal["none", "batch"] = Field(
        default="batch", description="normalisation after each convolution"
    )

    def build(self, input_shape: Shape, num_classes: int) -> SplitModel:
        """Return the network for series of at least 8 steps."""
        if len(input_shape) not in (1, 2) or input_shape[0] < 8 or min(input_shape) < 1:
            raise FedtailError(
                f"model '{self.name}' takes signals (time,) or (time, channels) of at least 8"
                f" steps, not samples of shape {tuple(input_shape)}"
            )
        if self.kernel % 2 == 0:
            raise FedtailError(f"model.kernel = {self.kernel} must be odd")
        layers: OrderedDict[str, nn.Module] = OrderedDict(channels=ChannelsFirst())
        inputs = 1 if len(input_shape) == 1 else input_shape[1]
        for number, width in enumerate((self.width, 2 * self.width, 4 * self.width), 1):
            layers[f"conv{number}"] = nn.Conv1d(
                inputs, width, self.kernel, padding=self.kernel // 2
            )
            if self.norm == "batch":
                layers[f"norm{number}"] = nn.BatchNorm1d(width)
            layers[f"relu{number}"] = nn.ReLU()
            if number < 3:
                layers[f"pool{number}"] = nn.MaxPool1d(2)
            inputs = width
        layers |= {"pool": nn.AdaptiveAvgPool1d(1), "flatten": nn.Flatten()}
        layers["fc"] = nn.Linear(inputs, num_classes)
        return SplitModel(nn.Sequential(layers), "fc")
