"""How much one method is above another over the same seeds, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

CONFIDENCE = 0.95
EXACT = 16
"""Up to so many seeds all sign flips are counted; with more, `DRAWN_FLIPS` of them are drawn."""
DRAWN_FLIPS = 2**EXACT


@dataclass(frozen=True)
class Difference:
    """A score minus that of another method, seed by seed.

    Attributes
    ----------
    mean
        Over the seeds that both have.
    low, high
        The 95 % interval of the mean (Student's t of the paired differences); nothing for one seed.
    p
        How often a mean as far from zero comes up if the sign of each difference is drawn by a
        coin (exact sign-flip test, two-sided); nothing for one seed.
    seeds
        How many seeds both have.
    """

    mean: float
    low: float | None
    high: float | None
    p: float | None
    seeds: int

    @property
    def sure(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def difference(ours: Mapping[int, float], others: Mapping[int, float]) -> Difference | None:
    """Compare two methods by seed; nothing if they share no seed."""
    paired = [ours[seed] - others[seed] for seed in ours if seed in others]
    if not paired:
        return None
    mean, half = fmean(paired), half_width(paired)
    if half is None:
        return Difference(mean, None, None, None, len(paired))
    return Difference(mean, mean - half, mean + half, sign_flip(paired), len(paired))


def half_width(values: Sequence[float]) -> float | None:
    """Return half the 95 % interval of a mean (Student's t); one value has none."""
    from scipy.special import stdtrit

    n = len(values)
    if n < 2:
        return None
    return float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * stdev(values) / math.sqrt(n)


def sign_flip(differences: Sequence[float]) -> float:
    """Return the share of sign flips whose sum is at least as far from zero as the one found.

    Of n differences there are 2^n, so p is never below 2/2^n: 0.25 for three seeds, 0.0625 for
    five.
    """
    d = np.asarray(differences)
    n = len(d)
    if n <= EXACT:
        flips = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    else:
        flips = np.random.default_rng(0).integers(0, 2, (DRAWN_FLIPS, n))
        flips[0] = 0  # what was found is one of the possible outcomes
    sums = np.abs((1 - 2 * flips) @ d)
    # Sums that are equal on paper may differ in their last bits, also where they are zero.
    return float(np.mean(sums >= np.abs(d.sum()) - 1e-9 * np.abs(d).sum()))
