"""Data sets of torch: one sample after the other, each an input and a label."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedtail.data.dataset import as_numpy
from fedtail.errors import FedtailError

LABEL_KEYS = ("label", "labels", "target", "targets", "y", "fine_label")

PLAIN_MODES = {"P": "RGB", "PA": "RGBA", "1": "L", "LA": "L"}
"""What images become whose numbers are places in a palette, no bytes, or grey and transparency."""


def pixels(value: Any) -> Any:
    """Return an image as one whose numbers are grey or colours; anything else as it is."""
    mode = getattr(value, "mode", None)
    colours = PLAIN_MODES.get(mode) if isinstance(mode, str) else None
    return value.convert(colours) if colours and hasattr(value, "convert") else value


def size_of(dataset: Any) -> int:
    """Return how many samples there are, without loading them."""
    if isinstance(dataset, torch.utils.data.DataLoader):
        return size_of(dataset.dataset)
    return len(dataset[0] if is_pair(dataset) else dataset)


def is_pair(dataset: Any) -> bool:
    """Whether these are inputs and labels, side by side."""
    return isinstance(dataset, tuple | list) and len(dataset) == 2 and hasattr(dataset[0], "shape")


def stacked(dataset: Any) -> tuple[Tensor, Any]:
    """Return inputs and labels of whatever holds samples; what is wrong is said in a clause."""
    if isinstance(dataset, torch.utils.data.DataLoader):
        dataset = dataset.dataset
    if is_pair(dataset):
        return torch.as_tensor(dataset[0]), dataset[1]
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise FedtailError(
            "has no length or no places: a data set has __len__ and __getitem__ (read the samples "
            "of an iterable one into a list first)"
        )
    pairs = [_pair(dataset[i]) for i in range(len(dataset))]
    if not pairs:
        raise FedtailError("has no local data")
    shapes = {tuple(x.shape) for x, _ in pairs}
    if len(shapes) > 1:
        raise FedtailError(f"has inputs of different shapes, such as {sorted(shapes)[:2]}")
    return torch.stack([x for x, _ in pairs]), as_numpy([y for _, y in pairs], "has odd labels")


def _pair(item: Any) -> tuple[Tensor, Any]:
    if isinstance(item, Mapping):
        label = next((name for name in LABEL_KEYS if name in item), None)
        inputs = [value for value in item.values() if isinstance(value, Tensor) and value.ndim]
        if label is None or len(inputs) != 1:
            raise _unknown_form()
        return inputs[0], _label(item[label])
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise _unknown_form()
    x, y = item
    if not isinstance(x, Tensor):
        array = as_numpy(pixels(x), "has odd inputs")  # an image, or numbers
        if array.dtype.kind not in "uifb":
            raise FedtailError("has inputs that are no tensors, arrays or images: transform them")
        x = torch.as_tensor(array if array.flags.writeable else array.copy())  # images are not
    return x, _label(y)


def _label(y: Any) -> Any:
    """Return a label as plain Python; whether labels are right is asked when all are there."""
    label = as_numpy(y, "has odd labels")
    plain = label.item() if label.size == 1 else label.tolist()
    return int(plain) if isinstance(plain, bool) else plain


def _unknown_form() -> FedtailError:
    return FedtailError(
        "has data of an unknown form: a sample is a pair of input and label, or a dictionary with "
        f"one tensor and one of {', '.join(LABEL_KEYS)}"
    )
