"""How skewed a split is: sizes, classes per client, distance to the global class mix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedtail.data.parts import Parts

DENSE = 2
"""Cells of a table of clients and classes, for each sample, up to which it is kept whole."""


@dataclass(frozen=True, eq=False)
class Statistics:
    """Figures of a split, one entry a client.

    Attributes
    ----------
    sizes
        How many samples each client holds.
    classes
        How many different classes each client holds.
    total_variation
        Half the absolute difference between a client's class mix and that of all clients together,
        summed over the classes: 0 for the same mix, near 1 for a client with one rare class.
    class_counts
        How many samples of each class all clients hold together.
    """

    sizes: np.ndarray
    classes: np.ndarray
    total_variation: np.ndarray
    class_counts: np.ndarray

    def describe(self) -> dict[str, Any]:
        """Return the figures over all clients as plain data."""
        return {
            "clients": len(self.sizes),
            "samples": int(self.sizes.sum()),
            "size_min": int(self.sizes.min()),
            "size_median": float(np.median(self.sizes)),
            "size_max": int(self.sizes.max()),
            "classes_per_client_mean": float(self.classes.mean()),
            "classes_per_client_min": int(self.classes.min()),
            "classes_per_client_max": int(self.classes.max()),
            "mean_total_variation": float(self.total_variation.mean()),
        }

    def lines(self) -> list[str]:
        """Return the figures over all clients for a person to read."""
        present = self.class_counts[self.class_counts > 0]
        return [
            f"{len(self.sizes)} clients, {self.sizes.sum()} samples, "
            f"{len(present)} of {len(self.class_counts)} classes, "
            f"imbalance {present.max() / present.min():.1f}",
            f"samples per client: {self.sizes.min()} to {self.sizes.max()}, "
            f"median {np.median(self.sizes):g}",
            f"classes per client: {self.classes.mean():.1f} "
            f"[{self.classes.min()}, {self.classes.max()}]",
            f"mean total variation to the global mix: {self.total_variation.mean():.3f}",
        ]


def statistics(labels: np.ndarray, parts: Sequence[np.ndarray], num_classes: int) -> Statistics:
    """Return the figures of a split whose clients all hold a sample.

    Many clients times many classes cost no more memory than the samples.
    """
    whole = Parts.of(parts)
    sizes, y = whole.sizes, labels[whole.order]
    cells = whole.owner
    cells *= num_classes  # in place: with a million clients every copy counts
    cells += y
    if len(parts) * num_classes <= DENSE * len(y):  # counting is faster than sorting
        table = np.bincount(cells)
        pairs = np.flatnonzero(table)
        number = table[pairs]
    else:
        pairs, number = np.unique(cells, return_counts=True)
    client, c = pairs // num_classes, pairs % num_classes
    class_counts = np.bincount(y, minlength=num_classes)
    prior = class_counts[c] / len(y)
    # A class that a client misses adds its prior; written as 1 minus the priors of those it holds.
    excess = np.abs(number / sizes[client] - prior) - prior
    variation = 0.5 * (1.0 + np.bincount(client, weights=excess, minlength=len(parts)))
    variation = np.maximum(variation, 0.0)  # rounding
    classes = np.bincount(client, minlength=len(parts))
    return Statistics(sizes, classes, variation, class_counts)


def class_table(labels: np.ndarray, parts: Sequence[np.ndarray], num_classes: int) -> np.ndarray:
    """Return how many samples each client (rows) holds of each class (columns)."""
    whole = Parts.of(parts)
    cell = whole.owner * num_classes + labels[whole.order]
    table: np.ndarray = np.bincount(cell, minlength=len(parts) * num_classes)
    return table.reshape(len(parts), num_classes)
