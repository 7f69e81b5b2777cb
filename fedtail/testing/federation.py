"""A federation small enough for hand calculation and awkward enough to be honest.

Six clients and four classes. Class 3 is in the test set and in nobody's training data, client 1 has
one class, client 2 has one sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import nn

from fedtail.data.partitions import Natural
from fedtail.data.sources import Arrays
from fedtail.experiment import Experiment
from fedtail.methods import FedAvg, Method
from fedtail.models import ModelLike
from fedtail.training import LocalTraining

COUNTS = ((6, 4, 2, 0), (5, 0, 0, 0), (0, 1, 0, 0), (3, 3, 0, 0), (0, 4, 4, 0), (7, 1, 2, 0))
NUM_CLASSES = 4
IMAGE = (3, 8, 8)
VECTOR = (6,)


def arrays(shape: Sequence[int] = IMAGE) -> dict[str, np.ndarray]:
    """Return uint8 images (or float vectors) with one bright channel or place a class."""
    rng = np.random.default_rng(0)
    y = np.concatenate([np.repeat(np.arange(NUM_CLASSES), row) for row in COUNTS])
    y_test = np.repeat(np.arange(NUM_CLASSES), 3)
    owner = np.repeat(np.arange(len(COUNTS)), [sum(row) for row in COUNTS])
    kind = np.uint8 if len(shape) == 3 else np.float32

    def inputs(labels: np.ndarray) -> np.ndarray:
        x = rng.integers(0, 100, (len(labels), *shape))
        x[np.arange(len(labels)), labels % shape[0]] += 100
        return x.astype(kind)

    return {
        "x_train": inputs(y),
        "y_train": y,
        "x_test": inputs(y_test),
        "y_test": y_test,
        "client_train": owner,
    }


def source(shape: Sequence[int] = IMAGE) -> Arrays:
    """Return the data as a source that knows what inputs are normalised with.

    So nobody has to ask the clients for it: what passes are the messages of the method alone.
    """
    held = arrays(shape)
    x = held["x_train"] / (255.0 if len(shape) == 3 else 1.0)
    x = np.moveaxis(x, 1, -1).reshape(-1, shape[0])
    return Arrays(**held, mean=tuple(x.mean(0).tolist()), std=tuple(x.std(0).tolist()))


def plain_model() -> nn.Module:
    """No BatchNorm, a classifier with bias."""
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 6), nn.ReLU(), nn.Linear(6, NUM_CLASSES))


def unbiased_model() -> nn.Module:
    """No BatchNorm, a classifier without bias."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(192, 6), nn.ReLU(), nn.Linear(6, NUM_CLASSES, bias=False)
    )


def norm_model() -> nn.Module:
    """BatchNorm, a classifier with bias."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(36, NUM_CLASSES),
    )


def dropout_model() -> nn.Module:
    """BatchNorm and dropout, a classifier without bias."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(36, NUM_CLASSES, bias=False),
    )


def bare_model() -> nn.Module:
    """No layer but a classifier."""
    return nn.Linear(*VECTOR, NUM_CLASSES)


PLAIN, UNBIASED, NORM, DROPOUT, BARE = (
    "plain",
    "without bias",
    "with BatchNorm",
    "with BatchNorm and dropout",
    "bare linear",
)
MODELS: Mapping[str, Callable[[], nn.Module]] = {
    PLAIN: plain_model,
    UNBIASED: unbiased_model,
    NORM: norm_model,
    DROPOUT: dropout_model,
    BARE: bare_model,
}
"""The models that a method is tried on, by what is special about each."""


def input_shape(model: str) -> tuple[int, ...]:
    """Return the shape of one input of the model of that name."""
    return VECTOR if model == BARE else IMAGE


def quick(**fields: Any) -> LocalTraining:
    """Return a short local training."""
    return LocalTraining(**{"batch_size": 4, "lr": 0.05, **fields})


def experiment(
    method: Method[Any] | None = None, model: ModelLike = plain_model, **fields: Any
) -> Experiment:
    """Return an experiment of three rounds with four of the six clients in each."""
    chosen: dict[str, Any] = {
        "method": FedAvg(local=quick()) if method is None else method,
        "data": source(),
        "model": model,
        "partition": Natural(),
        "rounds": 3,
        "per_round": 4,
        "device": "cpu",
        "together": 0,  # what is promised bit by bit is promised of clients that train alone
        **fields,
    }
    return Experiment(**chosen)
