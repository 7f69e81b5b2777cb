"""Federations of which it is known what is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedtail import Arrays, Experiment, FedAvg

CLASSES, WIDTH = 10, 12
CLIENTS, SAMPLES = 24, 60


def labels(imbalance: float, alpha: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and owners: client k draws from π_k ~ Dirichlet(α C π), π with that imbalance.

    Then Var(π_kc) = π_c (1 − π_c) / (α C + 1): the share of the labels' variance between clients
    is 1 / (α C + 1), whatever π is.
    """
    rng = np.random.default_rng(seed)
    shares = imbalance ** (-np.arange(CLASSES) / (CLASSES - 1))
    shares = shares / shares.sum()
    each = rng.dirichlet(np.maximum(alpha * CLASSES * shares, 1e-3), CLIENTS)
    y = np.concatenate([rng.choice(CLASSES, SAMPLES, p=row) for row in each])
    return y, np.repeat(np.arange(CLIENTS), SAMPLES)


def experiment(
    imbalance: float = 1.0,
    alpha: float = 100.0,
    noise: float = 0.0,
    shift: float = 0.0,
    seed: int = 0,
    **fields: Any,
) -> Experiment:
    """Return Gaussian classes, far apart, with wrong labels or an offset a client on request."""
    rng = np.random.default_rng(100 + seed)
    y, owner = labels(imbalance, alpha, seed)
    centres = 4 * rng.standard_normal((CLASSES, WIDTH))
    offsets = shift * rng.standard_normal((CLIENTS, WIDTH))
    x = centres[y] + rng.standard_normal((len(y), WIDTH)) + offsets[owner]
    wrong = rng.random(len(y)) < noise
    told = np.where(wrong, (y + rng.integers(1, CLASSES, len(y))) % CLASSES, y)
    y_test = np.repeat(np.arange(CLASSES), 3)
    x_test = centres[y_test] + rng.standard_normal((len(y_test), WIDTH))
    data = Arrays(
        x.astype(np.float32),
        told,
        x_test.astype(np.float32),
        y_test,
        client_train=owner,
        classes=tuple("abcdefghij"),
        normalisation="none",
    )
    chosen: dict[str, Any] = {
        "data": data,
        "partition": "natural",
        "model": {"name": "mlp", "hidden": [16]},
        "method": FedAvg(local={"lr": 0.05, "batch_size": 20}),
        "workers": 0,
        "device": "cpu",
        **fields,
    }
    return Experiment(**chosen)
