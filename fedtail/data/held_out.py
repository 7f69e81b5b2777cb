"""Samples, or whole clients, that are held out: never trained on, and what a round is chosen by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from fedtail.config import Config
from fedtail.errors import FedtailError
from fedtail.rng import numpy_generator


class Validation(Config):
    """What is held out of training; of those who hold it, only sums of counts are used."""

    share: float = Field(0.0, ge=0, lt=1, description="how much is held out; 0 holds out nothing")
    by: Literal["sample", "client"] = Field(
        "sample",
        description="sample: that share of each class at every client; client: that share of the "
        "clients, whole",
    )


def held_out(labels: np.ndarray, share: float, seed: int, client: int) -> np.ndarray:
    """Return which of a client's samples it holds out, ascending.

    Of n samples of a class it is ⌊share·n⌋ or one more, drawn so that share·n is the mean: rare
    classes, of which no client would hold out a whole sample, are held out by some. One sample of
    each class stays in training. It depends on the client's own labels, its number and the seed, so
    that a client on a machine of its own holds out the same as a simulated one.
    """
    rng = numpy_generator(seed, "validation", client=client)
    chosen = [np.empty(0, np.int64)]
    for c in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == c))
        size = int(share * len(members) + rng.random())
        chosen.append(members[: min(size, len(members) - 1)])
    return np.sort(np.concatenate(chosen))


def held_out_clients(clients: int, share: float, rng: np.random.Generator) -> np.ndarray:
    """Return which clients are held out whole, ascending: at least one, and never all."""
    size = min(max(1, round(share * clients)), clients - 1)
    return np.sort(rng.choice(clients, size=size, replace=False))


def hold_out(
    labels: np.ndarray, parts: Sequence[np.ndarray], validation: Validation, seed: int
) -> tuple[Sequence[np.ndarray], Sequence[np.ndarray], np.ndarray]:
    """Hold samples or clients out of a split.

    Parameters
    ----------
    labels
        Of the whole training set.
    parts
        The positions of each client's samples.
    validation, seed
        What to hold out, and where the choice comes from.

    Returns
    -------
    tuple
        What each client trains on; what each holds out (none at all if nothing is held out, and
        clients that are held out whole come after the others); the old numbers of the clients, in
        their new order.
    """
    order = np.arange(len(parts))
    if not validation.share:
        return parts, [], order
    if validation.by == "sample":
        where = [held_out(labels[part], validation.share, seed, k) for k, part in enumerate(parts)]
        pairs = list(zip(parts, where, strict=True))
        return [np.delete(p, at) for p, at in pairs], [p[at] for p, at in pairs], order
    if len(parts) < 2:
        raise FedtailError(
            "validation.by = 'client' needs two clients at least, one to train and one to hold out"
        )
    rng = numpy_generator(seed, "validation clients")
    chosen = held_out_clients(len(parts), validation.share, rng)
    rest = np.delete(order, chosen)
    none = np.empty(0, np.int64)
    held = [*(none for _ in rest), *(parts[k] for k in chosen.tolist())]
    return [parts[k] for k in rest.tolist()], held, np.concatenate([rest, chosen])
