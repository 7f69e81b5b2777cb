"""Arrays as a file holds them, and the one way they become a `Dataset`.

Every source ends here, so that a rule about layout, labels or clients is written once.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fedtail.data.dataset import (
    CHUNK,
    Dataset,
    Given,
    Samples,
    Transform,
    as_numpy,
    checked_samples,
    class_names,
    must_be_inputs,
)
from fedtail.data.held_out import held_out_clients
from fedtail.data.texts import texts_of
from fedtail.errors import FedtailError, some
from fedtail.rng import numpy_generator

Array = np.ndarray | Tensor
Constants = tuple[tuple[float, ...], tuple[float, ...]]
logger = logging.getLogger("fedtail")

MANY_VALUES = 100
"""Float labels with more values than this, most of them rare, look like measurements."""
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
    given, raw = given_by(raw), numbered(raw, where)
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
    if names is None:
        _tell_gaps(where, train.y, test.y)
    return Dataset(
        train=train,
        test=test,
        classes=class_names(names, train.y, test.y),
        client_train=client_train,
        client_test=client_test,
        client_names=client_names,
        mean=constants[0],
        std=constants[1],
        given=given,
    )


def given_by(raw: Raw) -> Given:
    """Return how the inputs and labels of arrays are given."""
    scale = () if raw.scale is None else tuple(np.ravel(as_numpy(raw.scale, "scale")).tolist())
    named = _are_names(as_numpy(raw.y_train, "y_train"))
    return Given(tuple(np.shape(raw.x_train)[1:]), scale, named=named)


def transformed(raw: Raw, transform: Transform) -> Raw:
    """Return arrays whose inputs went through the user's function, in parts."""
    if texts_of(raw.x_train):
        raise FedtailError("data.transform takes numbers, and the inputs are texts")
    test = None if raw.x_test is None else _through(transform, raw.x_test, "x_test")
    return replace(raw, x_train=_through(transform, raw.x_train, "x_train"), x_test=test)


def _through(transform: Transform, x: Array, where: str) -> Tensor:
    whole = x if isinstance(x, Tensor) else torch.as_tensor(as_numpy(x, where))
    parts = [transform(part) for part in torch.split(whole, CHUNK // 16)]
    sizes = [len(part) if isinstance(part, Tensor) and part.ndim else -1 for part in parts]
    if sum(sizes) != len(whole):
        raise FedtailError(
            f"{where}: data.transform returns no tensor with one row an input for a batch of them"
        )
    return torch.cat(parts)


def numbered(raw: Raw, where: str) -> Raw:
    """Return arrays whose labels are numbers: names stand for their places among the classes."""
    labels = {"y_train": raw.y_train, "y_test": raw.y_test}
    text = {
        key: _as_names(array)
        for key, value in labels.items()
        if value is not None
        if _are_names(array := as_numpy(value, f"{where}, {key}"))
    }
    if not text:
        return raw
    odd = next((key for key, value in labels.items() if value is not None and key not in text), "")
    if odd:
        raise FedtailError(f"{where}: {odd} holds numbers, but other labels are names")
    names = _names(raw.classes, f"{where}, classes")
    if twice := _twice(names or []):
        raise FedtailError(f"{where}: labels are names, and two classes are called '{twice}'")
    found = np.unique(np.concatenate(list(text.values())))
    classes = names or [str(name) for name in found]
    unknown = sorted(set(found.tolist()) - set(classes))
    if unknown:
        raise FedtailError(
            f"{where}: label '{unknown[0]}' is none of the classes ({', '.join(classes)})"
        )
    place = {name: c for c, name in enumerate(classes)}
    numbers = {
        key: np.array([place[name] for name in value.ravel().tolist()]).reshape(value.shape)
        for key, value in text.items()
    }
    return replace(raw, **numbers, classes=classes)


def numbered_labels(y: object, known: Sequence[str | int], where: str) -> np.ndarray:
    """Return labels as positions among those of the classes: names, or numbers.

    Those that are no class have -1, and are wrong whatever is predicted; that is warned of, and
    refused if it is all of them.
    """
    labels = as_numpy(y, where)
    place: dict[Any, int] = {label: c for c, label in enumerate(known)}
    named = isinstance(known[0], str)
    told = [str(label) if named else label for label in labels.ravel().tolist()]
    found = np.array([place.get(label, -1) for label in told])
    if odd := sorted({str(label) for label in told if label not in place}):
        said = f"{some(odd)} (classes: {some(list(place))})"
        if (found < 0).all():
            raise FedtailError(f"{where}: none is a class of the model: {said}")
        many = int((found < 0).sum())
        logger.warning("%s: %s of %s are no class of the model: %s", where, many, len(found), said)
    return found


def _are_names(labels: np.ndarray) -> bool:
    if labels.ndim != 1:
        return False
    if labels.dtype.kind == "O":
        return bool(labels.size) and all(isinstance(label, str) for label in labels.ravel())
    return labels.dtype.kind in "UST"


def _as_names(array: np.ndarray) -> np.ndarray:
    """Return names as text: they come as objects (from pandas), bytes or strings."""
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8", "replace")
    return array.astype(object).astype(str)  # NumPy's own text has no other way


def _twice(names: Sequence[str]) -> str | None:
    return next((name for name, times in Counter(names).items() if times > 1), None)


def _tell_gaps(where: str, *labels: Tensor) -> None:
    """Warn of numbers below the largest label that no sample has: each becomes a class."""
    most = 1 + max(int(y.max()) for y in labels)
    counts = sum(torch.bincount(y, minlength=most) for y in labels)
    absent = np.flatnonzero(np.asarray(counts) == 0).tolist()
    if absent:
        logger.warning(
            "%s: labels go up to %s, but no sample has %s: these are classes without samples; "
            "number labels from 0 without gaps, or give them as names",
            where,
            most - 1,
            some(absent),
        )


def _tell_measurements(y: Array, where: str) -> None:
    """Warn of labels that look like measurements: floats with many values."""
    labels = as_numpy(y, where)
    values = len(np.unique(labels)) if labels.dtype.kind == "f" else 0
    if values > max(MANY_VALUES, labels.size // 20):
        logger.warning(
            "%s: the labels are floats with %s different values: is this a regression? each value "
            "is taken for a class",
            where,
            values,
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
    if not len(train) or not len(test):
        part = "test" if len(train) else "training"
        raise FedtailError(f"{where}: data.drop leaves no sample in the {part} set")
    number = torch.full((dataset.num_classes,), -1)
    number[kept] = torch.arange(len(kept))
    return replace(
        dataset,
        train=Samples(dataset.train.x[train], number[dataset.train.y[train]]),
        test=Samples(dataset.test.x[test], number[dataset.test.y[test]]),
        classes=tuple(dataset.classes[c] for c in kept),
        given=replace(dataset.given, labels=tuple(kept)),
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
    raw = numbered(raw, where)
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


def _samples(x: Array, y: Array, raw: Raw, where: str, part: str) -> Samples:
    """Return checked samples, the inputs scaled and as NCHW."""
    names = _names(raw.classes, f"{where}, classes")
    scaled = texts_of(x) or arranged(x, raw.scale, f"{where}, x_{part}")
    if part == "train":
        _tell_measurements(y, f"{where}, y_train")
    count = None if names is None else len(names)
    return checked_samples(scaled, y, count, where, (f"x_{part}", f"y_{part}"))


def arranged(x: Array, scale: np.ndarray | float | Sequence[float] | None, where: str) -> Array:
    """Return inputs as they were given, scaled and as NCHW; what is no array of numbers is refused.

    Predictions use it too: whatever is done to inputs before they are normalised is done here.
    """
    inputs = x if isinstance(x, Tensor) else as_numpy(x, where)
    must_be_inputs(inputs, where)
    return _channels_first(_scaled(inputs, scale, where))


def _names(given: Sequence[str] | np.ndarray | None, where: str) -> list[str] | None:
    if given is None:
        return None
    names = as_numpy(given, where)
    if names.ndim != 1 or not len(names):
        raise FedtailError(f"{where}: a list of names is needed, got shape {names.shape}")
    return [str(name) for name in names]


def _scaled(x: Array, scale: np.ndarray | float | Sequence[float] | None, where: str) -> Array:
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
        if raw.client_test is not None:
            raise FedtailError(f"{where}: client_test is given, but no client_train")
        return None, None, ()
    train = _owners(raw.client_train, len(raw.y_train), f"{where}, client_train")
    ids = np.unique(train)
    test = None
    if raw.client_test is not None and raw.y_test is not None:
        test = _owners(raw.client_test, len(raw.y_test), f"{where}, client_test")
        if (train.dtype.kind == "U") != (test.dtype.kind == "U"):
            raise FedtailError(
                f"{where}: of client_train and client_test one holds names and one numbers: give "
                "both alike"
            )
        ids = np.concatenate([ids, np.setdiff1d(test, ids)])
    names = _client_names(ids, raw.clients, where)
    return _renumbered(train, ids), None if test is None else _renumbered(test, ids), names


def _owners(values: Sequence[str] | Array, length: int, where: str) -> np.ndarray:
    owners = as_numpy(values, where)
    if owners.shape != (length,):
        raise FedtailError(f"{where}: shape {owners.shape}, but there are {length} samples")
    if _are_names(owners):
        return _as_names(owners)
    if owners.dtype.kind not in "ui":
        raise FedtailError(f"{where}: clients must be whole numbers or names, got {owners.dtype}")
    return owners


def _client_names(
    ids: np.ndarray, names: Sequence[str] | np.ndarray | None, where: str
) -> tuple[str, ...]:
    if names is None or ids.dtype.kind not in "ui":
        return tuple(map(str, ids.tolist()))
    known = _names(names, f"{where}, clients") or []
    odd = next((value for value in ids.tolist() if not 0 <= value < len(known)), None)
    if odd is not None:
        raise FedtailError(f"{where}: client {odd} is beyond the {len(known)} names in clients")
    chosen = tuple(known[value] for value in ids)
    if twice := _twice(chosen):
        raise FedtailError(f"{where}: two clients are called '{twice}' in clients")
    return chosen


def _renumbered(owners: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Return the place of each owner among the ids."""
    if ids.dtype.kind in "ui" and np.array_equal(ids, np.arange(len(ids))):
        return owners.astype(np.int64, copy=False)
    order = np.argsort(ids, kind="stable")
    number: np.ndarray = order[np.searchsorted(ids, owners, sorter=order)]
    return number
