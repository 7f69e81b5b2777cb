"""New inputs from files, for a model that is trained: arrays, tables, images, sound, texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedtail.data.dataset import Source
from fedtail.data.formats.images import ImageFiles
from fedtail.data.formats.npz import read_arrays
from fedtail.data.formats.sound import read_clips
from fedtail.data.formats.tables import LINES, TABLE_SUFFIXES, inputs, read_table
from fedtail.data.raw import numbered_labels
from fedtail.data.sources.folder import Folder, is_sound, media
from fedtail.data.sources.table import TableFile
from fedtail.errors import FedtailError
from fedtail.predictor import Predictor

INPUTS, LABEL_ARRAYS = ("x", "x_test"), ("y", "y_test")
"""What arrays in a file may be called."""
KNOWN = f".npz, {', '.join(TABLE_SUFFIXES)}, {LINES}, an image, a wav file, or a folder of those"


@dataclass(frozen=True)
class NewInputs:
    """Inputs that a model has not seen.

    Attributes
    ----------
    x
        As `Predictor` takes them.
    names
        What each is called: its number, or its file.
    labels
        What they are, if the file says so: as labels were given for training, or names of classes.
    """

    x: Any
    names: Sequence[str]
    labels: np.ndarray | None = None

    def right(self, model: Predictor, found: np.ndarray) -> float | None:
        """Return the share of inputs whose label was found, if there are labels."""
        if self.labels is None:
            return None
        if len(self.labels) != len(found):
            raise FedtailError(f"{len(found)} inputs but {len(self.labels)} labels")
        known = model.classes if self.labels.dtype.kind in "US" else model.labels.tolist()
        labels = numbered_labels(self.labels, known, "labels")
        return float((labels == found).mean())


def read_inputs(path: Path, model: Predictor, data: Source | None) -> NewInputs:
    """Return what a file or a folder holds, read as the training data of a model was.

    Parameters
    ----------
    path
        The file or folder.
    model
        What is to predict.
    data
        Where the training data came from, if that is known: names of columns, sizes of images.
    """
    if not path.exists():
        raise FedtailError(f"there is no file or folder {path}")
    suffix = path.suffix.lower()
    if path.is_dir():
        files = media(path) or [file for part in _folders(path) for file in media(part)]
        if not files:
            raise FedtailError(f"{path} holds no images or wav files, nor do the folders in it")
        return _media(files, path, model, data)
    if suffix == ".npz":
        return _arrays(path)
    if suffix in (*TABLE_SUFFIXES, LINES):
        return _rows(path, model, data)
    if path in media(path.parent):
        return _media([path], path.parent, model, data)
    raise FedtailError(f"{path} cannot be read (known: {KNOWN})")


def _arrays(path: Path) -> NewInputs:
    arrays = read_arrays(path, (*INPUTS, *LABEL_ARRAYS))
    x = next((arrays[key] for key in INPUTS if key in arrays), None)
    if x is None:
        raise FedtailError(f"{path}: neither of {', '.join(INPUTS)} is there")
    labels = next((arrays[key] for key in LABEL_ARRAYS if key in arrays), None)
    return NewInputs(x, _numbers(len(x) if x.ndim else 0), labels)


def _rows(path: Path, model: Predictor, data: Source | None) -> NewInputs:
    columns = read_table(path)
    if model.takes != "texts" and (len(model.file.given_shape) != 1 or model.file.rate):
        raise FedtailError(f"{path} is a table, and the model takes {model.takes}")
    table = data if isinstance(data, TableFile) else TableFile(path=str(path))
    try:
        names = model.file.columns or table.inputs_in(columns, path)
        x = inputs(columns, names, path, model.takes == "texts")
    except FedtailError as error:
        if model.file.columns or table is data:
            raise
        raise FedtailError(
            f"{path} has columns that are no inputs, and the model was trained on no table that "
            f"says which are: give an npz with x, or a table of inputs and '{table.label}' alone"
        ) from error
    labels = columns.get(table.label)
    told = None if labels is None else np.array([str(label) for label in labels])
    return NewInputs(x, _numbers(len(x)), told)


def _media(files: list[Path], root: Path, model: Predictor, data: Source | None) -> NewInputs:
    file = model.file
    names = [path.relative_to(root).as_posix() for path in files]
    classes = np.array([name.partition("/")[0] for name in names])
    labels = classes if set(classes.tolist()) <= set(file.classes) else None
    if is_sound(files, root):
        if not file.rate or len(file.given_shape) != 1:
            raise FedtailError(f"{files[0]} is sound, and the model takes {model.takes}")
        return NewInputs(
            read_clips(files, file.rate, file.given_shape[0] / file.rate)[0], names, labels
        )
    if file.kind != "bytes" or len(file.shape) != 3 or file.shape[0] not in (1, 3):
        raise FedtailError(f"{files[0]} is an image, and the model takes {model.takes}")
    channels, height, width = file.shape
    square = height if height == width else 0
    resize = (data.size or 0) if isinstance(data, Folder) else square
    images = ImageFiles(
        str(root), tuple(names), "L" if channels == 1 else "RGB", resize, (height, width)
    )
    return NewInputs(images[torch.arange(len(images))], names, labels)


def _folders(path: Path) -> list[Path]:
    return sorted(entry for entry in path.iterdir() if entry.is_dir() and entry.name[0] != ".")


def _numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]
