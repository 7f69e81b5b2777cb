"""What the sources of the user's own data share."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from fedtail.data.dataset import About, Dataset, Source
from fedtail.data.public import data_folder
from fedtail.data.raw import (
    Normalisation,
    Raw,
    dataset_from,
    training_constants,
    with_test_set,
    without_classes,
)
from fedtail.errors import FedtailError


def _text(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


PathText = Annotated[str, BeforeValidator(_text)]
"""A path, kept as text so that a description of a run is plain data."""


class OwnSource(Source):
    """The user's own data; what is not given is derived from it."""

    about: ClassVar[About] = About("")

    test_fraction: float = Field(
        0.2,
        gt=0,
        lt=1,
        description="share that tests, if there is no test set: of the natural clients, held out "
        "whole, or of each class where there are none",
    )
    split_seed: int = Field(0, ge=0, description="seed of that split")
    normalisation: Normalisation = Field(
        "standard",
        description="standard: training mean and deviation of each channel or feature; "
        "global: one pair of numbers; none: as it is",
    )

    drop: tuple[str, ...] = Field((), description="names of classes to leave out")

    def dataset(self, raw: Raw, where: str) -> Dataset:
        """Return the checked arrays, split and normalised as the fields say."""
        whole = with_test_set(raw, self.test_fraction, self.split_seed, where)
        dataset = without_classes(dataset_from(whole, where), self.drop, where)
        mean, std = training_constants(dataset.train.x, self.normalisation)
        return replace(dataset, mean=mean, std=std)

    def model_for(self, dataset: Dataset) -> str:
        """Return a model that suits the shape of one input."""
        match dataset.input_shape:
            case (3, height, width) if min(height, width) >= 32:
                return "resnet8"
            case (1, 28, 28):
                return "cnn"
            case (_, _, _):
                return "small_cnn"
        return self.default_model


def existing(path: str, what: str) -> Path:
    """Return the path itself, or the one below the data folder, whichever exists."""
    given = Path(path).expanduser()
    for candidate in (given, data_folder() / given):
        if candidate.exists():
            return candidate
    raise FedtailError(f"there is no {what} {path} (nor in {data_folder()})")
