"""The user's own arrays in one ``npz``."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedtail.data.dataset import About, Dataset, Source
from fedtail.data.formats.npz import read_npz
from fedtail.data.read_once import read_once
from fedtail.data.sources.own import OwnSource, PathText, existing


@Source.register("npz")
class Npz(OwnSource):
    """One ``npz`` file; pickled objects in it are refused.

    Its keys are x_train and y_train and, if there are any, x_test, y_test, classes, client_train,
    client_test, clients (their names) and scale (what inputs are multiplied by).
    """

    about: ClassVar[About] = About("your own arrays: x_train, y_train, x_test, y_test, ...")

    path: PathText = Field(description="the file, also looked for in FEDTAIL_DATA")

    def load(self) -> Dataset:
        """Read, check and return the arrays."""
        path = existing(self.path, "file")

        def read() -> Dataset:
            return self.dataset(read_npz(path), str(path))

        # What a function of the user's does may change from call to call.
        return read() if self.transform is not None else read_once(self, path, read)

    @classmethod
    def advice(cls) -> str:
        """Return how to name the file."""
        return "data.path=FILE.npz"
