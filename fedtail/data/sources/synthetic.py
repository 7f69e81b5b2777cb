"""Synthetic(λ, μ): every client has a model of its own, and labels come from it.

T. Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020. For client k:
u ~ N(0, λ), B ~ N(0, μ), W ~ N(u, 1) in R^{60x10}, b ~ N(u, 1) in R^10, v ~ N(B, 1) in R^60,
x ~ N(v, diag(j^-1.2)), y = arg max softmax(xW + b). λ and μ are used as standard deviations, as the
authors' generator does: λ says how much models differ between clients, μ how much inputs do.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from fedtail.data.dataset import About, Dataset, Source
from fedtail.data.raw import Raw, dataset_from
from fedtail.rng import numpy_generator

FEATURES = 60
SYNTHETIC_CLASSES = 10
FEATURE_DEVIATIONS = np.arange(1, FEATURES + 1) ** -0.6  # the square root of j^-1.2
TRAIN_SHARE = 0.9


@Source.register("synthetic")
class Synthetic(Source):
    """Generated vectors with natural clients; the first 90 % of each client's samples train."""

    default_model: ClassVar[str] = "mlp"
    about: ClassVar[About] = About(
        "Synthetic(λ, μ) of FedProx and LEAF, generated", "by its fields", "10", "30 (a field)"
    )

    lam: float = Field(1.0, ge=0, description="λ: how much models differ between clients")
    mu: float = Field(1.0, ge=0, description="μ: how much inputs differ between clients")
    clients: int = Field(30, ge=1, description="how many clients are generated")
    samples_per_client: int | None = Field(
        None, ge=2, description="samples of each client; none: int(lognormal(4, 2)) + 50"
    )
    seed: int = Field(0, ge=0, description="seed of the generator, apart from the experiment's")

    def load(self) -> Dataset:
        """Generate the data, client after client, each from its own stream."""
        sizes = self._sizes()
        train = np.floor(TRAIN_SHARE * sizes).astype(np.int64)
        ends, test_ends = np.cumsum(train), np.cumsum(sizes - train)
        x_train = np.empty((ends[-1], FEATURES), np.float32)
        x_test = np.empty((test_ends[-1], FEATURES), np.float32)
        y_train, y_test = np.empty(ends[-1], np.int64), np.empty(test_ends[-1], np.int64)
        for k in range(self.clients):
            x, y = self._client(k, int(sizes[k]))
            here = slice(ends[k] - train[k], ends[k])
            there = slice(test_ends[k] - (sizes[k] - train[k]), test_ends[k])
            x_train[here], x_test[there] = x[: train[k]], x[train[k] :]
            y_train[here], y_test[there] = y[: train[k]], y[train[k] :]
        everyone = np.arange(self.clients)
        raw = Raw(
            x_train,
            y_train,
            x_test,
            y_test,
            classes=[str(c) for c in range(SYNTHETIC_CLASSES)],
            client_train=np.repeat(everyone, train),
            client_test=np.repeat(everyone, sizes - train),
        )
        return dataset_from(raw, self.name)

    def _sizes(self) -> np.ndarray:
        if self.samples_per_client is not None:
            return np.full(self.clients, self.samples_per_client, np.int64)
        rng = numpy_generator(self.seed, "data.synthetic.sizes")
        return rng.lognormal(4.0, 2.0, self.clients).astype(np.int64) + 50

    def _client(self, k: int, size: int) -> tuple[np.ndarray, np.ndarray]:
        rng = numpy_generator(self.seed, "data.synthetic", client=k)
        u, centre = rng.standard_normal(2) * (self.lam, self.mu)
        weight = rng.standard_normal((FEATURES, SYNTHETIC_CLASSES)) + u
        bias = rng.standard_normal(SYNTHETIC_CLASSES) + u
        mean = rng.standard_normal(FEATURES) + centre
        x = rng.standard_normal((size, FEATURES)) * FEATURE_DEVIATIONS + mean
        return x, (x @ weight + bias).argmax(1)

    @classmethod
    def located(cls) -> str | None:
        """Return that nothing has to be fetched."""
        return "generated"

    @classmethod
    def advice(cls) -> str:
        """Return that nothing has to be fetched."""
        return "it is generated"
