"""What releases cost: ε of a whole run, and the noise that a budget asks for.

The noise is a multiple of the sensitivity: two updates of norm S at most are 2S apart. Releases of
which a client is always a part compose exactly (Gaussians with noise z, w of them, are one with
z / √w: `spent_epsilon`). Cohorts drawn at random without replacement cost less; dp-accounting
computes how much (Wang, Balle, Kasiviswanathan, "Subsampled Rényi Differential Privacy and
Analytical Moments Accountant", AISTATS 2019). The smaller of the two bounds counts.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from fedtail.errors import missing_extra
from fedtail.privacy.gaussian import smallest, spent_epsilon

ORDERS = (1.1, 1.25, 1.5, 1.75, *range(2, 25), 28, 32, 48)


class Release(NamedTuple):
    """The noisy sums of one round, over one cohort.

    Attributes
    ----------
    asked, clients
        How many clients the cohort has, drawn from how many; as many if it is not drawn by chance.
    weight
        How many sums one client is in; two tasks in one sum count as four sums.
    """

    asked: int
    clients: int
    weight: float = 1.0


Releases = Mapping[Release, int]


def spent(releases: Releases, noise: float, delta: float) -> float:
    """Return ε at δ of some releases with noise σ / 2S."""
    weight = sum(release.weight * count for release, count in releases.items())
    if not weight:
        return 0.0
    always = spent_epsilon(noise, math.sqrt(weight), delta)
    if all(release.asked >= release.clients for release in releases):
        return always
    return min(always, _sampled(frozenset(releases.items()), noise, delta))


def least_noise(releases: Releases, epsilon: float, delta: float) -> float:
    """Return the smallest σ / 2S with which some releases cost ε at δ at most."""
    return smallest(lambda noise: spent(releases, noise, delta) <= epsilon, steps=25)


@cache
def _sampled(releases: frozenset[tuple[Release, int]], noise: float, delta: float) -> float:
    dp = dp_accounting()
    from dp_accounting import rdp

    # It warns of every order that does not converge; that order is then left out.
    logging.getLogger("absl").setLevel(logging.ERROR)
    accountant = rdp.RdpAccountant(
        orders=ORDERS, neighboring_relation=dp.NeighboringRelation.REPLACE_ONE
    )
    for release, count in sorted(releases):
        event = dp.GaussianDpEvent(noise / math.sqrt(release.weight))
        if release.asked < release.clients:
            event = dp.SampledWithoutReplacementDpEvent(release.clients, release.asked, event)
        accountant.compose(event, count)
    return float(accountant.get_epsilon(delta))


def dp_accounting() -> Any:
    """Return the module, or say which extra it is in."""
    try:
        import dp_accounting as module
    except ImportError:
        what = "differential privacy with sampled clients"
        raise missing_extra(what, "dp-accounting", "privacy") from None
    return module
