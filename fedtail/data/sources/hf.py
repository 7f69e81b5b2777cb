"""A data set of the Hugging Face hub, or one saved on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from fedtail.data.dataset import About, Dataset, Source
from fedtail.data.formats.pairs import pixels
from fedtail.data.raw import Raw
from fedtail.data.sources.own import OwnSource, PathText
from fedtail.errors import FedtailError, missing_extra

TEST_SPLIT = "test"
"""The split that tests, if there is one of this name."""


@Source.register("hf")
class HuggingFace(OwnSource):
    """Columns of a Hugging Face data set: images, numbers or texts; labels; perhaps clients."""

    about: ClassVar[About] = About("a Hugging Face data set, by name or saved on disk")

    path: PathText = Field(description="name on the hub, or a folder written by save_to_disk")
    subset: str | None = Field(None, description="configuration of the data set, if it has several")
    train_split: str = Field("train", description="split that trains")
    test_split: str | None = Field(
        TEST_SPLIT,
        description="split that tests; absent: a share of the training split, or of its clients",
    )
    input: str = Field("image", description="column of inputs: images, lists of numbers, or texts")
    label: str = Field("label", description="column of labels")
    client: str | None = Field(None, description="column that names each sample's natural client")

    def load(self) -> Dataset:
        """Read the columns into memory."""
        splits = self._splits()
        train = _split(splits, self.train_split, self.path)
        other = self.test_split
        there = other and (other in splits or other != TEST_SPLIT)  # others must be there
        test = _split(splits, other, self.path) if other and there else None
        x, y, owner = self._read(train)
        names = getattr(train.features[self.label], "names", None)
        x_test, y_test, owner_test = (None,) * 3 if test is None else self._read(test)
        raw = Raw(x, y, x_test, y_test, names, owner, owner_test)
        return self.dataset(raw, self.path)

    def _read(self, split: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        column = self._column(split, self.input)
        labels = self._column(split, self.label)
        owner = np.asarray(self._column(split, self.client)) if self.client else None
        return self._inputs(column), np.asarray(labels), owner

    def _inputs(self, column: list[Any]) -> np.ndarray:
        if column and isinstance(column[0], str):
            return np.array(column, dtype=object)
        x = [np.asarray(pixels(value)) for value in column]
        if len({array.shape for array in x}) > 1:
            raise FedtailError(f"{self.path}: inputs in column '{self.input}' differ in shape")
        return np.stack(x)

    def _column(self, split: Any, column: str) -> list[Any]:
        if column not in split.column_names:
            raise FedtailError(
                f"{self.path} has no column '{column}' (found: {', '.join(split.column_names)})"
            )
        return list(split[column])

    def _splits(self) -> Any:
        try:
            import datasets
        except ImportError as error:
            raise missing_extra("the data source 'hf'", "the package datasets", "hf") from error
        try:
            if Path(self.path).expanduser().is_dir():
                return datasets.load_from_disk(str(Path(self.path).expanduser()))
            return datasets.load_dataset(self.path, self.subset)
        except (OSError, ValueError) as error:
            raise FedtailError(f"Hugging Face data set '{self.path}': {error}") from error

    @classmethod
    def advice(cls) -> str:
        """Return how to name the data set."""
        return "data.path=NAME (needs the extra hf)"


def _split(splits: Any, name: str, where: str) -> Any:
    if not hasattr(splits, "keys") or name not in splits:
        found = ", ".join(splits) if hasattr(splits, "keys") else "one without a name"
        raise FedtailError(f"{where} has no split '{name}' (found: {found})")
    return splits[name]
