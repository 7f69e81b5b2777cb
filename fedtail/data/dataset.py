"""Samples and data sets: tensors in memory, once, checked when they are made."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from fedtail.config import Component, Registry
from fedtail.data.texts import Texts, texts_of
from fedtail.errors import FedtailError
from fedtail.plugins import first_line

MOST_CLASSES = 1_000_000
"""Labels from here on are taken for a mistake: each class costs a name and a row of weights."""

CHUNK = 65_536
"""Samples looked at together, so that checks on a large set need little memory."""

Normalisation = Literal["standard", "global", "none"]
Transform = Callable[[Tensor], Tensor]
"""The user's own function from a batch of inputs, as they were given, to a batch of numbers."""


class Features(Protocol):
    """The inputs of samples: a tensor, or something lazy that decodes on demand.

    Indexing with an integer tensor gathers a batch. Images are uint8 in NCHW, other whole numbers
    int32 or int64, everything else float32.
    """

    @property
    def shape(self) -> torch.Size:
        """The number of samples, then the shape of one."""

    @property
    def dtype(self) -> torch.dtype:
        """uint8 for images in 0..255, int32 or int64 for whole numbers, else float32."""

    def __getitem__(self, index: Tensor) -> Tensor: ...

    def __len__(self) -> int: ...


def rows_at(x: Features, positions: Tensor) -> Tensor:
    """Return rows of a tensor, or of something lazy: as indexing does, in a part of the time."""
    return x.index_select(0, positions.to(x.device)) if isinstance(x, Tensor) else x[positions]


@dataclass(frozen=True)
class Samples:
    """Inputs and labels of the same length."""

    x: Features
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Given:
    """How inputs were given, and what made them the inputs of a data set.

    Attributes
    ----------
    shape
        Of one input, before anything was done to it; empty if that is the shape of the data set's.
    scale
        What inputs were multiplied by: nothing, one number, or one for each entry of the last axis.
    transform
        What was done to them first.
    named
        Whether labels were given as names, so that predictions are names.
    labels
        The number of each class as labels were given, if some classes were left out: it is then not
        its position.
    columns
        Of a table of numbers: which columns are inputs, in their order.
    rate
        Of sound: how many samples a second waveforms have.
    """

    shape: tuple[int, ...] = ()
    scale: tuple[float, ...] = ()
    transform: Transform | None = None
    named: bool = False
    labels: tuple[int, ...] = ()
    columns: tuple[str, ...] = ()
    rate: int | None = None


@dataclass(frozen=True)
class Dataset:
    """What a source gives.

    Attributes
    ----------
    train, test
        The samples.
    classes
        Class names; a label is a position in it.
    client_train, client_test
        For data with natural clients (writer, speaker, patient): each sample's client number.
    client_names
        What those numbers stand for.
    mean, std
        Normalisation per channel (of values in 0..1 for uint8 images); empty for none.
    normalisation
        Where there is no mean: which one a run asks its clients for (`fedtail.standardise`).
    given
        How inputs and labels were given.
    """

    train: Samples
    test: Samples
    classes: tuple[str, ...]
    client_train: np.ndarray | None = None
    client_test: np.ndarray | None = None
    client_names: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = field(default=())
    normalisation: Normalisation = "none"
    given: Given = Given()

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.classes)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.train.x.shape[1:])


@dataclass(frozen=True)
class About:
    """What a list of sources says about one of them."""

    what: str
    samples: str = "yours"
    classes: str = "yours"
    natural_clients: str = "-"


class Source(Component):
    """A named place that data comes from.

    A subclass says what it holds (`about`), which model suits it (`default_model`), whether it is
    here (`located`), how to get it (`advice`), and gives the data (`load`).
    """

    registry: ClassVar[Registry[Source]] = Registry("data source")
    default_model: ClassVar[str] = "mlp"
    about: ClassVar[About] = About("")

    @classmethod
    def adopted(cls, value: Any) -> Any:
        """Return a data set of torch, or a training and a test set, as a source."""
        parts = value if isinstance(value, tuple | list) else (value,)
        if not parts or not all(isinstance(part, torch.utils.data.Dataset) for part in parts):
            return value
        from fedtail.data.sources.torch_data import TorchData

        return TorchData(*parts)

    def load(self) -> Dataset:
        """Read, check and return the data."""
        raise FedtailError(f"data source '{self.name}' is abstract")

    def model_for(self, dataset: Dataset) -> str:
        """Return the name of the model to use when the user names none."""
        return self.default_model

    @classmethod
    def located(cls) -> str | None:
        """Return where the data is on this machine, or `None` if it has to be fetched."""
        return None

    @classmethod
    def advice(cls) -> str:
        """Return what to do to have this data."""
        return f"fedtail data fetch {cls.name}"


def checked_labels(y: np.ndarray | Tensor, num_classes: int | None, where: str) -> Tensor:
    """Return labels as int64, or say what is wrong with them."""
    labels = as_numpy(y, where)
    if labels.ndim != 1:
        hot = labels.ndim == 2 and labels.shape[1] > 1
        one_hot = "; for one-hot labels give their argmax(1)" if hot else ""
        raise FedtailError(
            f"{where}: labels must be one-dimensional, got shape {labels.shape}{one_hot}"
        )
    if not np.issubdtype(labels.dtype, np.integer) and not _whole(labels):
        raise FedtailError(f"{where}: labels must be whole numbers, got {labels.dtype} values")
    if labels.size and labels.min() < 0:
        raise FedtailError(f"{where}: labels must not be negative, found {labels.min():g}")
    if num_classes is not None and labels.size and labels.max() >= num_classes:
        raise FedtailError(
            f"{where}: label {labels.max():g} is beyond the {num_classes} classes "
            f"(allowed: 0 to {num_classes - 1})"
        )
    if labels.size and labels.max() >= MOST_CLASSES:
        raise FedtailError(
            f"{where}: label {labels.max():g} is too large (allowed: below {MOST_CLASSES})"
        )
    return torch.from_numpy(np.require(labels, np.int64, ["C", "W"]))


def must_be_inputs(x: np.ndarray | Tensor, where: str) -> None:
    """Refuse inputs that are no numbers, or that do not have a sample and a feature axis."""
    if isinstance(x, Tensor):
        numbers = _dense(x) and not x.is_complex()
        kind = f"a {x.layout} tensor of {x.dtype}".replace("torch.", "")
    else:
        numbers, kind = x.dtype.kind in "uifb", str(x.dtype)
    if not numbers:
        raise FedtailError(f"{where}: inputs must be numbers, got {kind}")
    if x.ndim < 2 or 0 in x.shape[1:]:
        raise FedtailError(
            f"{where}: inputs need a sample and a feature axis, got shape {tuple(x.shape)}"
        )


def checked_features(x: np.ndarray | Tensor, where: str) -> Tensor:
    """Return inputs as `Features` has them, without NaN or infinity, or say what is wrong."""
    must_be_inputs(x, where)
    tensor = x.detach() if isinstance(x, Tensor) else tensor_from(x)
    if tensor.is_floating_point() or tensor.dtype == torch.bool:
        tensor = tensor.to(torch.float32)
        if not all(map(_finite, torch.split(tensor, CHUNK))):
            raise FedtailError(f"{where}: inputs hold NaN or infinite values")
    elif tensor.dtype != torch.uint8:
        tensor = _narrowed(tensor.to(torch.int64))
    return tensor.contiguous()


def _finite(x: Tensor) -> bool:
    """Whether there is neither NaN nor infinity, in a tenth of the time of `isfinite`."""
    return not x.numel() or all(math.isfinite(end) for end in torch.aminmax(x))


def checked_samples(
    x: np.ndarray | Tensor | Texts,
    y: np.ndarray | Tensor,
    num_classes: int | None,
    where: str,
    names: tuple[str, str] | None = None,
) -> Samples:
    """Return checked samples; inputs and labels must have the same length, and at least one.

    Parameters
    ----------
    x, y, num_classes
        Inputs, labels, and how many classes there are, if that is known.
    where
        What they are of, for messages.
    names
        What the two arrays are called there.
    """
    at_x, at_y = (f"{where}, {name}" for name in names) if names else (where, where)
    features = x if isinstance(x, Texts) else texts_of(x) or checked_features(x, at_x)
    samples = Samples(features, checked_labels(y, num_classes, at_y))
    if len(samples.x) != len(samples.y):
        raise FedtailError(
            f"{where}{', ' + ' and '.join(names) if names else ''}: {len(samples.x)} inputs but "
            f"{len(samples.y)} labels"
        )
    if not len(samples.y):
        raise FedtailError(f"{at_x}: no samples")
    return samples


def as_numpy(values: object, where: str) -> np.ndarray:
    """Return numbers or names as an array, or say why they cannot be one."""
    if isinstance(values, Tensor):
        if not _dense(values):
            raise FedtailError(f"{where}: a dense tensor is needed, got {values.layout}")
        # NumPy has no bfloat16.
        return (values.double() if values.is_floating_point() else values).numpy(force=True)
    try:
        return _in_order(np.asarray(values))
    except Exception as error:  # lists may hold anything
        if "inhomogeneous" in str(error):
            raise FedtailError(f"{where}: rows of different lengths make no array") from None
        raise FedtailError(f"{where}: this makes no array ({first_line(error)})") from None


def class_names(names: Sequence[str] | None, *labels: Tensor) -> tuple[str, ...]:
    """Return the given names, or numbers for as many classes as the labels show."""
    if names is not None:
        return tuple(str(name) for name in names)
    return tuple(str(c) for c in range(1 + max(int(y.max()) for y in labels)))


def _dense(values: Tensor) -> bool:
    return values.layout == torch.strided and not values.is_quantized and not values.is_meta


def _narrowed(whole: Tensor) -> Tensor:
    """Return whole numbers in half the memory, if they fit."""
    bounds = torch.iinfo(torch.int32)
    fits = not whole.numel() or (whole.min() >= bounds.min and whole.max() <= bounds.max)
    return whole.to(torch.int32) if fits else whole


def _in_order(array: np.ndarray) -> np.ndarray:
    """Return an array as torch takes it: bytes in this machine's order, no negative strides."""
    if array.dtype.isnative and min(array.strides, default=0) >= 0:
        return array
    return np.require(array, array.dtype.newbyteorder("="), "C")


def tensor_from(array: np.ndarray) -> Tensor:
    """Return numbers as a tensor of a type that inputs have."""
    if array.dtype == np.uint8:
        return torch.from_numpy(np.require(array, requirements=["C", "W"]))
    if array.dtype.kind in "iu" and array.max(initial=0) < 2**63:  # what torch has no type for
        return torch.from_numpy(np.require(array, np.int64, ["C", "W"]))
    with np.errstate(over="ignore"):  # what does not fit becomes infinite, and is then refused
        return torch.from_numpy(np.require(array, np.float32, ["C", "W"]))


def _whole(labels: np.ndarray) -> bool:
    if labels.dtype.kind != "f":
        return False
    return bool(np.isfinite(labels).all() and np.array_equal(labels, np.trunc(labels)))
