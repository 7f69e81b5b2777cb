"""The user's own rows: CSV, TSV or JSON Lines, with texts or numbers as inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from pydantic import BeforeValidator, Field

from fedtail.data.dataset import About, Dataset, Source
from fedtail.data.formats.tables import (
    TABLE_SUFFIXES,
    TEXT,
    Columns,
    inputs,
    labels,
    ordered,
    owners,
    read_table,
)
from fedtail.data.raw import Raw
from fedtail.data.sources.own import OwnSource, PathText, existing
from fedtail.errors import FedtailError

Names = Annotated[tuple[str, ...], BeforeValidator(lambda v: (v,) if isinstance(v, str) else v)]
"""Names of columns; one alone needs no list."""


@Source.register("table")
class TableFile(OwnSource):
    """One row a sample in a ``csv``, ``tsv`` or ``jsonl`` file; labels are names of classes."""

    about: ClassVar[About] = About("your own rows, of texts or numbers: csv, tsv or jsonl")

    path: PathText = Field(description="the file, also looked for in FEDTAIL_DATA")
    test: PathText | None = Field(
        None, description="a file of rows that test; absent: a seeded share of the others"
    )
    input: Names = Field(
        (),
        description="a column of texts, or columns of numbers; absent: 'text', or all others",
    )
    label: str = Field("label", description="column of labels: names or numbers of classes")
    client: str | None = Field(None, description="column that names each row's natural client")

    def load(self) -> Dataset:
        """Read the files into memory."""
        path = existing(self.path, "file")
        train = read_table(path)
        names = self.inputs_in(train, path)
        x, y, owner = self._read(train, names, path, None)
        if self.test is None:
            raw = Raw(x, np.array(y), classes=ordered(y), client_train=owner)
            return with_columns(self.dataset(raw, str(path)), names)
        other = existing(self.test, "file")
        # The same columns, whatever their order there and whatever else the file has.
        x_test, y_test, owner_test = self._read(read_table(other), names, other, x.ndim == 1)
        raw = Raw(
            x,
            np.array(y),
            x_test,
            np.array(y_test),
            classes=ordered([*y, *y_test]),
            client_train=owner,
            client_test=owner_test,
        )
        return with_columns(self.dataset(raw, str(path)), names)

    def inputs_in(self, columns: Columns, path: Path) -> tuple[str, ...]:
        """Return which columns of a table are inputs."""
        others = [name for name in columns if name not in (self.label, self.client)]
        names = self.input or ((TEXT,) if TEXT in columns else tuple(others))
        if not names:
            raise FedtailError(f"{path} has no column of inputs beside '{self.label}'")
        if "" in names:
            raise FedtailError(
                f"{path} has a column without a name, which may be the number of the row (pandas "
                "leaves it out with index=False): say which columns are inputs, such as "
                """data.input='["a","b"]'"""
            )
        return names

    def _read(
        self, columns: Columns, names: Sequence[str], path: Path, texts: bool | None
    ) -> tuple[np.ndarray, list[str], np.ndarray | None]:
        y = labels(columns, self.label, path)
        owner = owners(columns, self.client, path) if self.client else None
        return inputs(columns, names, path, texts), y, owner

    @classmethod
    def advice(cls) -> str:
        """Return how to name the file."""
        return f"data.path=FILE ({', '.join(TABLE_SUFFIXES)})"


def with_columns(dataset: Dataset, names: tuple[str, ...]) -> Dataset:
    """Return a data set that knows its columns, by which new rows are read."""
    return replace(dataset, given=replace(dataset.given, columns=names))
