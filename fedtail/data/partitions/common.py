"""What the schemes share: checks, safe Dirichlet draws, cuts and the bounded repair."""

from __future__ import annotations

import numpy as np

from fedtail.data.partitions.base import Labels
from fedtail.errors import FedtailError

MAX_TRIES = 20
"""How often a scheme draws before it repairs what it has.

The hardest setting of the papers (CReFF on CIFAR-10-LT) accepts three draws in ten, so that less
than one split in a thousand is repaired there.
"""

WORK = 5_000_000
"""Random numbers spent on drawing again: many clients times many classes get fewer tries."""

MOST_ALPHA = 1e100
"""Sums of larger concentrations are no numbers any more."""


def check_clients(labels: Labels, clients: int) -> None:
    """Refuse a number of clients that cannot each hold a sample."""
    if clients < 1:
        raise FedtailError(f"the number of clients is {clients}, it must be at least 1")
    if clients > len(labels.y):
        raise FedtailError(
            f"{clients} clients but only {len(labels.y)} samples; every client needs at least one"
        )


def tries(clients: int, classes: int) -> int:
    """Return how often drawing again is affordable."""
    return max(1, min(MAX_TRIES, WORK // max(1, clients * classes)))


def attainable(minimum: int, samples: int, clients: int) -> int:
    """Return the minimum size, lowered to what equal sharing could give."""
    return min(minimum, samples // clients)


def by_class(labels: Labels, rng: np.random.Generator) -> list[np.ndarray]:
    """Return for each class its positions, shuffled."""
    order = rng.permutation(len(labels.y))
    order = order[np.argsort(labels.y[order], kind="stable")]
    return np.split(order, np.cumsum(labels.counts())[:-1])


def dirichlet(rng: np.random.Generator, concentration: np.ndarray, rows: int = 1) -> np.ndarray:
    """Draw rows from a Dirichlet distribution; every row sums to one, however small alpha is.

    For vanishing concentrations a draw underflows to 0/0. Its limit is a corner of the simplex,
    corner i with probability proportional to its concentration, and that is what is drawn then.
    """
    draws = rng.dirichlet(concentration, size=rows)
    broken = np.flatnonzero(~(np.isfinite(draws).all(axis=1) & (draws.sum(axis=1) > 0.5)))
    if len(broken):
        corners = rng.choice(
            len(concentration), size=len(broken), p=concentration / concentration.sum()
        )
        draws[broken] = 0.0
        draws[broken, corners] = 1.0
    return draws


def apportion(shares: np.ndarray, total: int | np.ndarray) -> np.ndarray:
    """Turn shares along the last axis into whole numbers that sum to `total`.

    The cumulative sums are truncated, as the papers' code does; the last part takes the rest.
    """
    total = np.asarray(total, dtype=np.int64)
    ends = np.cumsum(shares, axis=-1)
    ends *= total[..., None]
    edges = ends.astype(np.int64)
    np.minimum(edges, total[..., None], out=edges)
    edges[..., -1] = total
    np.subtract(edges[..., 1:], edges[..., :-1], out=edges[..., 1:])
    return edges


def repaired(client: np.ndarray, labels: Labels, clients: int, minimum: int) -> np.ndarray:
    """Return each sample's client after moving samples to clients that hold fewer than `minimum`.

    The largest clients give, down to one common level, and each gives evenly across its classes so
    that its own mix stays. No random numbers, no loop that could fail to end.
    """
    sizes = np.bincount(client, minlength=clients)
    missing = np.maximum(minimum - sizes, 0)
    need = int(missing.sum())
    if not need:
        return client
    gives = _gives(sizes, minimum, need)
    order = np.lexsort((labels.y, client))
    starts = np.cumsum(sizes) - sizes
    moved = []
    for donor in np.flatnonzero(gives).tolist():
        count, size = int(gives[donor]), int(sizes[donor])
        evenly = np.arange(count) * size // count + size // (2 * count)
        moved.append(order[starts[donor] + evenly])
    result = client.copy()
    result[np.concatenate(moved)] = np.repeat(np.arange(clients), missing)
    return result


def _gives(sizes: np.ndarray, minimum: int, need: int) -> np.ndarray:
    """Return how many samples each client gives so that `need` come from the largest ones."""
    low, high = minimum, int(sizes.max())
    while high - low > 1:
        level = (low + high) // 2
        if np.maximum(sizes - level, 0).sum() >= need:
            low = level
        else:
            high = level
    gives: np.ndarray = np.maximum(sizes - low, 0)
    # One level higher would be too little, so taking one back from some donors is enough.
    gives[np.flatnonzero(gives)[: int(gives.sum()) - need]] -= 1
    return gives
