"""What the sources of the user's own data share."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, SkipValidation, model_validator

from fedtail.data.augment import channel_axis
from fedtail.data.dataset import About, Dataset, Normalisation, Source
from fedtail.data.public import data_folder
from fedtail.data.raw import (
    Raw,
    dataset_from,
    given_by,
    transformed,
    with_test_set,
    without_classes,
)
from fedtail.errors import FedtailError
from fedtail.model_file import place_of


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
        description="standard: mean and deviation of each channel or feature (of windows, of each "
        "entry of the last axis), from sums that the clients report once; global: one pair of "
        "numbers; none: as it is",
    )
    mean: tuple[float, ...] = Field(
        (), description="subtracted from inputs (images count 0 to 1), instead of asking clients"
    )
    std: tuple[float, ...] = Field((), description="what inputs are divided by then")
    transform: SkipValidation[Any] = Field(
        None,
        repr=False,
        description="from Python: a function that inputs go through first, batch by batch",
    )
    rate: int | None = Field(
        None, ge=1, description="of sound: samples a second of the waveforms, for pretrained models"
    )
    drop: tuple[str, ...] = Field((), description="names of classes to leave out")

    def dataset(self, raw: Raw, where: str) -> Dataset:
        """Return the checked arrays, split and normalised as the fields say."""
        given = replace(given_by(raw), rate=self.rate)
        if self.transform is not None:
            given, raw = replace(given, transform=self.transform), transformed(raw, self.transform)
        whole = with_test_set(raw, self.test_fraction, self.split_seed, where)
        dataset = without_classes(dataset_from(whole, where), self.drop, where)
        shape = dataset.input_shape
        if len(self.mean) > 1 and len(self.mean) != shape[channel_axis(shape) - 1]:
            raise FedtailError(
                f"{where}: data.mean has {len(self.mean)} numbers, but inputs have "
                f"{shape[channel_axis(shape) - 1]} channels or features"
            )
        return replace(
            dataset,
            mean=self.mean,
            std=self.std,
            normalisation="none" if self.mean else self.normalisation,
            given=replace(given, labels=dataset.given.labels),
        )

    def describe(self) -> dict[str, Any]:
        """Return the fields as plain data; a function is named."""
        plain = super().describe()
        if self.transform is not None:
            plain["transform"] = place_of(self.transform)
        return plain

    @model_validator(mode="after")
    def _is_function(self) -> Self:
        if self.transform is not None and not callable(self.transform):
            raise FedtailError(
                f"data.transform = {self.transform!r} is a function that only Python can give: "
                "fedtail.run(experiment, out=..., resume=True) goes on with such a run"
            )
        return self

    @model_validator(mode="after")
    def _constants(self) -> Self:
        if len(self.mean) != len(self.std) or not all(deviation > 0 for deviation in self.std):
            raise FedtailError(
                f"data.mean and data.std go together, one deviation above 0 for each mean; there "
                f"are {len(self.mean)} means and {len(self.std)} deviations"
            )
        return self

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


class InPython(OwnSource):
    """Data that the caller holds: two of them are the same only if they are one."""

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    @classmethod
    def located(cls) -> str | None:
        """Return that the data is with the caller."""
        return "in Python"


def existing(path: str, what: str) -> Path:
    """Return the path itself, or the one below the data folder, whichever exists."""
    given = Path(path).expanduser()
    for candidate in (given, data_folder() / given):
        if candidate.exists():
            return candidate
    raise FedtailError(f"there is no {what} {path} (nor in {data_folder()})")
