"""Tensors or NumPy arrays that are already in Python."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, SkipValidation
from torch import Tensor

from fedtail.data.dataset import About, Dataset, Source, as_numpy
from fedtail.data.raw import RAW_KEYS, Array, Raw
from fedtail.data.sources.own import InPython
from fedtail.errors import FedtailError


@Source.register("arrays")
class Arrays(InPython):
    """Inputs and labels in memory: ``Arrays(x_train, y_train, x_test, y_test)``.

    Two of them are equal only if they are the same object, and a description holds shapes only: a
    run on arrays can be repeated from Python, not from its ``experiment.toml``.
    """

    about: ClassVar[About] = About("tensors or NumPy arrays in Python")

    x_train: SkipValidation[Array] = Field(repr=False, description="training inputs")
    y_train: SkipValidation[Array] = Field(repr=False, description="training labels")
    x_test: SkipValidation[Array | None] = Field(None, repr=False, description="test inputs")
    y_test: SkipValidation[Array | None] = Field(None, repr=False, description="test labels")
    classes: tuple[str, ...] | None = Field(None, repr=False, description="class names")
    client_train: SkipValidation[Array | None] = Field(
        None, repr=False, description="natural client of each training sample"
    )
    client_test: SkipValidation[Array | None] = Field(
        None, repr=False, description="natural client of each test sample"
    )
    clients: tuple[str, ...] | None = Field(None, repr=False, description="names of the clients")
    scale: float | None = Field(None, description="what inputs are multiplied by")

    def __init__(
        self,
        x_train: Any = None,
        y_train: Any = None,
        x_test: Any = None,
        y_test: Any = None,
        **fields: Any,
    ) -> None:
        if x_train is None or y_train is None:
            raise FedtailError("data source 'arrays' is made in Python: Arrays(x_train, y_train)")
        given = {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test}
        for key in ("client_train", "client_test"):
            given[key] = fields.pop(key, None)
        arrays = {key: _array(value, key) for key, value in given.items()}
        super().__init__(**arrays, **fields)

    def load(self) -> Dataset:
        """Check and return the arrays."""
        return self.dataset(Raw(**{key: getattr(self, key) for key in RAW_KEYS}), "arrays")

    def describe(self) -> dict[str, Any]:
        """Return the name and the shapes."""
        held = {key: getattr(self, key) for key in RAW_KEYS}
        shapes = {key: list(value.shape) for key, value in held.items() if hasattr(value, "shape")}
        return {"name": self.name, "shapes": shapes}

    @classmethod
    def advice(cls) -> str:
        """Return how to make one."""
        return "from Python only: Arrays(x_train, y_train, x_test, y_test)"


def _array(value: Any, name: str) -> Any:
    return value if value is None or isinstance(value, Tensor) else as_numpy(value, name)
