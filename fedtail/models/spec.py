"""What a model description is: a `Component` that builds a model for a shape and some classes."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor

from fedtail.config import Component, Registry
from fedtail.data.dataset import Dataset
from fedtail.data.texts import Texts
from fedtail.errors import FedtailError
from fedtail.models.split_model import SplitModel

Shape = tuple[int, ...]
Reader = Callable[[Any], Tensor]
"""From raw inputs, as they were given, to what the network is given."""


class ModelSpec(Component):
    """A named architecture and its choices; the root of the ``model`` family.

    Weights are drawn from torch's global stream: whoever builds puts the call inside
    `fedtail.rng.contained`.
    """

    registry: ClassVar[Registry[Any]] = Registry("model")

    weights: str | None = Field(
        default=None, description="file to start from: safetensors, or a state dict of torch"
    )

    @abstractmethod
    def build(self, input_shape: Shape, num_classes: int) -> SplitModel:
        """Return a new model for samples of this shape (without the batch) and these classes."""

    def inputs(self, dataset: Dataset) -> Dataset:
        """Return the data as the network takes it; nothing is done by default."""
        return with_numbers(dataset)

    def reader(self, shape: Shape, rate: int | None) -> Reader | None:
        """Return what makes numbers of raw inputs that are none (texts, sound), if anything does.

        Parameters
        ----------
        shape
            Of one input as the network takes it.
        rate
            Of sound: samples a second of the raw waveforms.
        """
        return None

    def keep(self, folder: Path) -> None:
        """Write what `kept` needs into a run folder; by default nothing."""

    def kept(self, folder: Path) -> ModelSpec:
        """Return the description of the same architecture from what a run folder holds."""
        return self

    def image(self, input_shape: Shape, smallest: int = 1) -> tuple[int, int, int]:
        """Return (channels, height, width), or refuse a shape that is no large enough image."""
        if len(input_shape) != 3 or min(input_shape[1:]) < smallest or input_shape[0] < 1:
            raise FedtailError(
                f"model '{self.name}' takes images (channels, height, width) of at least"
                f" {smallest}x{smallest} pixels, not samples of shape {tuple(input_shape)}"
            )
        channels, height, width = input_shape
        return channels, height, width

    def flat(self, input_shape: Shape) -> int:
        """Return how many values a sample has, or refuse a shape that is none."""
        if not input_shape or min(input_shape) < 1:
            raise FedtailError(
                f"model '{self.name}' takes samples of any shape with at least one value,"
                f" not {tuple(input_shape)}"
            )
        return math.prod(input_shape)


def with_numbers(dataset: Dataset) -> Dataset:
    """Return the data as it is, if a network without a tokeniser can take it."""
    if isinstance(dataset.train.x, Texts):
        raise FedtailError(
            "the inputs are texts, which only a model with a tokeniser reads: give one, such as"
            " model = 'hf:distilbert-base-uncased', or numbers in their place"
        )
    return dataset
