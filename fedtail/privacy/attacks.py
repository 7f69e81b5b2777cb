"""What an honest-but-curious server can work out: small attacks, each with what chance would give.

None of them needs more than the server has. They are lower bounds: a cleverer attack may find more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class LabelGuess(NamedTuple):
    """How well the class shares of clients were guessed.

    Attributes
    ----------
    largest
        Share of clients whose largest class was named.
    distance
        Mean total variation between guess and truth: 0 is knowing it, 1 nothing in common.
    blind
        The same distance for who knows only the class shares of all clients together.
    """

    largest: float
    distance: float
    blind: float


def class_shares(change: Tensor) -> Tensor:
    """Guess a client's class shares from the change of a classifier's weight (classes, features).

    It is the signal of the proxy prior: the row of a class grows by the features of its samples
    and shrinks by those of the others, so that the positive part of the row sums follows the counts
    (Zeng et al., ICCV 2023, Eq. 4).
    """
    positive = change.double().sum(dim=1).clamp(min=0)
    total = positive.sum()
    even = torch.full_like(positive, 1 / len(positive))
    return positive / total if float(total) > 0 else even


def guess_labels(seen: Mapping[int, Tensor], counts: Mapping[int, Tensor]) -> LabelGuess:
    """Hold guessed shares against the true counts of the same clients."""
    clients = [k for k in seen if float(counts[k].sum()) > 0]
    everybody = torch.stack([counts[k].double() for k in clients]).sum(dim=0)
    everybody /= everybody.sum()
    named, apart, blind = [], [], []
    for k in clients:
        truth = counts[k].double() / counts[k].sum()
        named.append(float(truth[seen[k].argmax()] == truth.max()))
        apart.append(float((seen[k] - truth).abs().sum()) / 2)
        blind.append(float((everybody - truth).abs().sum()) / 2)
    return LabelGuess(*(sum(each) / len(each) for each in (named, apart, blind)))


def presence(scores: Mapping[int, Tensor], counts: Mapping[int, Tensor]) -> float | None:
    """Return the AUC of telling held classes from others by one score a class and client.

    1 is certainty, 0.5 chance; nothing if every client holds every class, or none any.
    """
    score = torch.cat([scores[k].double() for k in scores])
    held = torch.cat([counts[k] > 0 for k in scores])
    return auc(score[held], score[~held])


def auc(high: Tensor, low: Tensor) -> float | None:
    """Return how often a number of the first kind is above one of the second; ties count half."""
    if not len(high) or not len(low):
        return None
    difference = high[:, None] - low[None]
    return float((difference > 0).double().mean() + (difference == 0).double().mean() / 2)


def found_at(high: Tensor, low: Tensor, rate: float) -> float:
    """Return the share of the first kind above a threshold that a `rate` of the second exceeds.

    At most so many: of 150 others, one per cent is one.
    """
    allowed = min(math.floor(rate * len(low)), len(low) - 1)
    threshold = low.sort(descending=True).values[allowed]
    return float((high > threshold).double().mean())


class Likeness(NamedTuple):
    """How much made-up features look like those of real samples: mean largest cosine in a class.

    Attributes
    ----------
    made
        Of the server's features and the clients' training samples.
    unseen
        Of real test samples and the same training samples: what features of other data have.
    noise
        Of Gaussian features: what has never seen data.
    """

    made: float
    unseen: float
    noise: float


def likeness(
    made: Tensor, train: Tensor, y_train: Tensor, test: Tensor, y_test: Tensor
) -> Likeness | None:
    """Compare features (C, m, d) with those of real samples, class by class."""
    draw = torch.randn(made.shape, generator=torch.Generator().manual_seed(0))
    found: list[tuple[float, float, float]] = []
    for c in torch.unique(y_train).tolist():
        real, other = train[y_train == c], test[y_test == c]
        if len(real) and len(other):
            found.append((_nearest(made[c], real), _nearest(other, real), _nearest(draw[c], real)))
    if not found:
        return None
    return Likeness(*(sum(column) / len(found) for column in zip(*found, strict=True)))


def _nearest(a: Tensor, b: Tensor) -> float:
    cosine = functional.normalize(a.double(), dim=1) @ functional.normalize(b.double(), dim=1).T
    return float(cosine.max(dim=1).values.mean())
