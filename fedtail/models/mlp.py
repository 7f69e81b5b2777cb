"""Fully connected networks, for samples of any shape."""

from __future__ import annotations

from collections import OrderedDict

from pydantic import Field, PositiveInt
from torch import nn

from fedtail.models.spec import ModelSpec, Shape
from fedtail.models.split_model import SplitModel


@ModelSpec.register("mlp")
class MLP(ModelSpec):
    """Fully connected layers with ReLU between them; softmax regression if there are none hidden.

    The default is the "2NN" of McMahan et al. 2017.
    """

    hidden: tuple[PositiveInt, ...] = Field(
        default=(200, 200), description="widths of the hidden layers, first to last"
    )

    def build(self, input_shape: Shape, num_classes: int) -> SplitModel:
        """Return the network; the sample is flattened first."""
        layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        width = self.flat(input_shape)
        for number, hidden in enumerate(self.hidden, 1):
            layers[f"fc{number}"] = nn.Linear(width, hidden)
            layers[f"relu{number}"] = nn.ReLU()
            width = hidden
        layers["fc"] = nn.Linear(width, num_classes)
        return SplitModel(nn.Sequential(layers), "fc")
