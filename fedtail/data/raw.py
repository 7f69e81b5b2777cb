"""Arrays as a file holds them, and the one way they become a `Dataset`.

Every source ends here, so that a rule about layout, labels or clients is written once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor

from fedtail.data.dataset import (
    CHUNK,
    Dataset,
    Features,
    Samples,
    as_numpy,
    checked_samples,
    class_names,
    must_be_inputs,
)
from fedtail.data.held_out import held_out_clients
from fedtail.errors import FedtailError
from fedtail.rng import numpy_generator

Array = np.ndarray | Tensor
Constants = tuple[tuple[float, ...], tuple[float, ...]]
Normalisation = Literal["standard", "global", "none"]

CHANNELS = (1, 3, 4)
"""Sizes of an axis that can be colour: grey, RGB, RGB with transparency."""


@dataclass(frozen=True)
class Raw:
    """The arrays of a data set, unchecked, under the names they have in an ``npz``.

    Attributes
    ----------
    x_train, y_train, x_test, y_test
        Inputs and labels; the test set may be missing.
    classes
        Class names, by label.
    client_train, client_test
        Each sample's natural client: any numbers or names.
    clients
        If clients are numbers 0, 1, ...: their names.
    scale
        What integer inputs are multiplied by, for all or for each entry of the last axis.
    """

    x_train: Array
    y_train: Array
    x_test: Array | None = None
    y_test: Array | None = None
    classes: Sequence[str] | np.ndarray | None = None
    client_train: Sequence[str] | Array | None = None
    client_test: Sequence[str] | Array | None = None
    clients: Sequence[str] | np.ndarray | None = None
    scale: np.ndarray | float | None = None


RAW_KEYS = tuple(field.name for field in fields(Raw))


def dataset_from(raw: Raw, where: str, constants: Constants = ((), ())) -> Dataset:
    """Check the arrays and return them as a data set."""
    if raw.x_test is None or raw.y_test is None:
        raise FedtailError(f"{where}: x_test and y_test are missing")
    names = _names(raw.classes, f"{where}, classes")
    train = _samples(raw.x_train, raw.y_train, raw, where, "train")
    test = _samples(raw.x_test, raw.y_test, raw, where, "test")
    if train.x.shape[1:] != test.x.shape[1:]:
        raise FedtailError(
            f"{where}: a training input has shape {tuple(train.x.shape[1:])} "
            f"but a test input {tuple(test.x.shape[1:])}"
        )
    client_train, client_test, client_names = _clients(raw, where)
    return Dataset(
        train=train,
        test=test,
        classes=class_names(names, train.y, test.y),
        client_train=client_train,
        client_test=client_test,
        client_names=client_names,
        mean=constants[0],
        std=constants[1],
    )


def without_classes(dataset: Dataset, names: Sequence[str], where: str) -> Dataset:
    """Return the data set without the samples of these classes; the others move up."""
    if not names:
        return dataset
    unknown = [name for name in names if name not in dataset.classes]
    if unknown:
        raise FedtailError(
            f"{where}: data.drop names '{unknown[0]}', but the classes are"
            f" {', '.join(dataset.classes)}"
        )
    kept = [c for c, name in enumerate(dataset.classes) if name not in names]
    if len(kept) < 2:
        raise FedtailError(f"{where}: data.drop leaves fewer than two classes")
    train, test = (_of_classes(part, kept) for part in (dataset.train.y, dataset.test.y))
    number = torch.full((dataset.num_classes,), -1)
    number[kept] = torch.arange(len(kept))
    return replace(
        dataset,
        train=Samples(dataset.train.x[train], number[dataset.train.y[train]]),
        test=Samples(dataset.test.x[test], number[dataset.test.y[test]]),
        classes=tuple(dataset.classes[c] for c in kept),
        client_train=_rows(dataset.client_train, train),
        client_test=_rows(dataset.client_test, test),
    )


def _of_classes(y: Tensor, kept: Sequence[int]) -> Tensor:
    return torch.isin(y, torch.tensor(kept)).nonzero().flatten()


def _rows(owners: np.ndarray | None, index: Tensor) -> np.ndarray | None:
    return None if owners is None else owners[index.numpy()]


def with_test_set(raw: Raw, fraction: float, seed: int, where: str) -> Raw:
    """Return arrays that have a test set: their own, or one that is cut from them.

    Natural clients are held out whole: a model that is tested on samples of clients it was trained
    on looks better than it is on new ones. Without them it is a seeded part of each class.
    """
    if raw.x_test is not None and raw.y_test is not None:
        return raw
    if raw.x_test is not None or raw.y_test is not None:
        raise FedtailError(f"{where}: x_test and y_test must be given together")
    if raw.client_test is not None:
        raise FedtailError(f"{where}: client_test is given, but no x_test and y_test")
    # Checked before it is cut: what is wrong is then said of the arrays that were given.
    whole = _samples(raw.x_train, raw.y_train, raw, where, "train")
    x, y = cast(Tensor, whole.x), whole.y
    owner = raw.client_train
    if owner is not None:
        owner = _owners(owner, len(y), f"{where}, client_train")
    if owner is not None and len(np.unique(owner)) > 1:
        train, test = whole_clients(owner, fraction, seed)
    else:
        train, test = stratified(y.numpy(), fraction, seed)
    if not len(test):
        raise FedtailError(
            f"{where}: no class is large enough to test with {fraction:g} of it: give x_test and "
            "y_test, or a larger data.test_fraction"
        )
    return replace(
        raw,
        x_train=x[train],
        y_train=y[train],
        x_test=x[test],
        y_test=y[test],
        client_train=None if owner is None else owner[train],
        client_test=None if owner is None else owner[test],
        scale=None,  # done
    )


def stratified(y: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of the training and of the test samples, in their old order.

    Of each class with more than one sample, the nearest whole number to the fraction goes to the
    test set, and at least one sample stays in the training set.
    """
    chosen = np.zeros(len(y), bool)
    for rank, c in enumerate(np.unique(y)):
        members = np.flatnonzero(y == c)
        rng = numpy_generator(seed, "data.split", client=rank)
        size = min(round(fraction * len(members)), len(members) - 1)
        chosen[rng.permutation(members)[:size]] = True
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)


def whole_clients(owner: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of the training and of the test samples, whole clients in each.

    The nearest whole number to the fraction of the clients is drawn for the test set, at least one.
    """
    ids, number = np.unique(owner, return_inverse=True)
    rng = numpy_generator(seed, "data.split clients")
    tested = np.isin(number, held_out_clients(len(ids), fraction, rng))
    return np.flatnonzero(~tested), np.flatnonzero(tested)


def training_constants(x: Features, kind: Normalisation) -> Constants:
    """Return the mean and standard deviation of training inputs.

    "standard" takes each channel of images or each feature of vectors by itself; windows of
    (length, channels), and everything under "global", get one pair of numbers.
    """
    if kind == "none":
        return (), ()
    axes = [0, 2, 3] if len(x.shape) == 4 else [0]
    if kind == "global" or len(x.shape) not in (2, 4):
        axes = list(range(len(x.shape)))
    unit = 255.0 if x.dtype == torch.uint8 else 1.0
    total = square = torch.zeros(1, dtype=torch.float64)
    for start in range(0, len(x), CHUNK // 16):
        part = x[torch.arange(start, min(start + CHUNK // 16, len(x)))].to(torch.float64) / unit
        total = total + part.sum(axes)
        square = square + part.square().sum(axes)
    count = math.prod(x.shape[axis] for axis in axes)
    mean = total / count
    std = (square / count - mean.square()).clamp_min(0).sqrt()
    std = torch.where(std > 1e-8 * (1 + mean.abs()), std, 1.0)  # a constant is only shifted
    return tuple(mean.flatten().tolist()), tuple(std.flatten().tolist())


def _samples(x: Array, y: Array, raw: Raw, where: str, part: str) -> Samples:
    """Return checked samples, the inputs scaled and as NCHW."""
    inputs = x if isinstance(x, Tensor) else as_numpy(x, f"{where}, x_{part}")
    must_be_inputs(inputs, f"{where}, x_{part}")
    names = _names(raw.classes, f"{where}, classes")
    scaled = _channels_first(_scaled(inputs, raw.scale, where))
    count = None if names is None else len(names)
    return checked_samples(scaled, y, count, where, (f"x_{part}", f"y_{part}"))


def _names(given: Sequence[str] | np.ndarray | None, where: str) -> list[str] | None:
    if given is None:
        return None
    names = as_numpy(given, where)
    if names.ndim != 1 or not len(names):
        raise FedtailError(f"{where}: a list of names is needed, got shape {names.shape}")
    return [str(name) for name in names]


def _scaled(x: Array, scale: np.ndarray | float | None, where: str) -> Array:
    if scale is None:
        return x
    factor, array = as_numpy(scale, f"{where}, scale"), as_numpy(x, where)
    if factor.dtype.kind not in "uif":
        raise FedtailError(f"{where}, scale: numbers are needed, got {factor.dtype}")
    if factor.ndim > 1 or (factor.ndim == 1 and len(factor) not in (1, array.shape[-1])):
        raise FedtailError(
            f"{where}: scale has shape {factor.shape}, but the last axis of the inputs "
            f"has {array.shape[-1]} entries"
        )
    return array.astype(np.float32) * factor.astype(np.float32)


def _channels_first(x: Array) -> Array:
    """Return images as NCHW: a lone grey plane gets its channel axis, HWC is turned."""
    if x.ndim == 3 and x.dtype in (np.uint8, torch.uint8):
        return x[:, None]
    if x.ndim == 4 and x.shape[-1] in CHANNELS and x.shape[1] not in CHANNELS:
        return x.permute(0, 3, 1, 2) if isinstance(x, Tensor) else x.transpose(0, 3, 1, 2)
    return x


def _clients(raw: Raw, where: str) -> tuple[np.ndarray | None, np.ndarray | None, tuple[str, ...]]:
    """Return clients as numbers from 0, those with training data first, and their names."""
    if raw.client_train is None:
        return None, None, ()
    train = _owners(raw.client_train, len(raw.y_train), f"{where}, client_train")
    ids = np.unique(train)
    test = None
    if raw.client_test is not None and raw.y_test is not None:
        test = _owners(raw.client_test, len(raw.y_test), f"{where}, client_test")
        ids = np.concatenate([ids, np.setdiff1d(test, ids)])
    number = {value: k for k, value in enumerate(ids.tolist())}
    names = _client_names(ids, raw.clients, where)
    return _renumbered(train, number), None if test is None else _renumbered(test, number), names


def _owners(values: Sequence[str] | Array, length: int, where: str) -> np.ndarray:
    owners = as_numpy(values, where)
    if owners.shape != (length,):
        raise FedtailError(f"{where}: shape {owners.shape}, but there are {length} samples")
    if owners.dtype.kind not in "uiUS":
        raise FedtailError(f"{where}: clients must be whole numbers or names, got {owners.dtype}")
    return owners


def _client_names(
    ids: np.ndarray, names: Sequence[str] | np.ndarray | None, where: str
) -> tuple[str, ...]:
    if names is None or ids.dtype.kind not in "ui":
        return tuple(str(value) for value in ids)
    known = _names(names, f"{where}, clients") or []
    odd = next((value for value in ids.tolist() if not 0 <= value < len(known)), None)
    if odd is not None:
        raise FedtailError(f"{where}: client {odd} is beyond the {len(known)} names in clients")
    return tuple(known[value] for value in ids)


def _renumbered(owners: np.ndarray, number: dict[object, int]) -> np.ndarray:
    ids, inverse = np.unique(owners, return_inverse=True)
    return np.array([number[value] for value in ids.tolist()], np.int64)[inverse]
