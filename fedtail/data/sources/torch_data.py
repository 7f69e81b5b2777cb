"""Data sets of torch that are already in Python."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, SkipValidation

from fedtail.data.dataset import About, Dataset, Source
from fedtail.data.formats.pairs import size_of, stacked
from fedtail.data.raw import Array, Raw
from fedtail.data.sources.own import InPython
from fedtail.errors import FedtailError


@Source.register("torch")
class TorchData(InPython):
    """A map-style ``torch.utils.data.Dataset``: ``TorchData(train, test)``.

    A sample is a pair of input (tensor, array or image) and label, or a dictionary with one tensor
    and a label. All are read once, into memory; what is random in them is drawn once. As with
    `Arrays`, a description holds sizes only.
    """

    about: ClassVar[About] = About("data sets of torch in Python")

    train: SkipValidation[Any] = Field(repr=False, description="the training samples")
    test: SkipValidation[Any] = Field(None, repr=False, description="the test samples")
    classes: tuple[str, ...] | None = Field(None, repr=False, description="class names")
    client_train: SkipValidation[Array | None] = Field(
        None, repr=False, description="natural client of each training sample"
    )
    client_test: SkipValidation[Array | None] = Field(
        None, repr=False, description="natural client of each test sample"
    )

    def __init__(self, train: Any = None, test: Any = None, **fields: Any) -> None:
        if train is None:
            raise FedtailError("data source 'torch' is made in Python: TorchData(train, test)")
        super().__init__(**{"train": train, "test": test, **fields})

    def load(self) -> Dataset:
        """Read all samples."""
        x, y = _read(self.train, "the training data set")
        x_test, y_test = (None, None) if self.test is None else _read(self.test, "the test set")
        owners = self.client_train, self.client_test
        return self.dataset(Raw(x, y, x_test, y_test, self.classes, *owners), "torch")

    def describe(self) -> dict[str, Any]:
        """Return the name and the sizes."""
        held = {"train": self.train, "test": self.test}
        sizes = {key: [size_of(value)] for key, value in held.items() if value is not None}
        return {"name": self.name, "shapes": sizes}

    @classmethod
    def advice(cls) -> str:
        """Return how to make one."""
        return "from Python only: TorchData(train, test)"


def _read(dataset: Any, what: str) -> tuple[Any, Any]:
    try:
        return stacked(dataset)
    except FedtailError as error:
        raise FedtailError(f"{what} {error}") from None
