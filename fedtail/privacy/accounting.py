"""What releases cost: ε of a whole run, and the noise that a budget asks for.

The noise is a multiple of S, the largest norm of an update: a client whose data are replaced moves
a sum by 2S at most, one that is left out by S. Releases of which a client is always a part compose
exactly (Gaussians with noise z, w of them, are one with z / √w: `spent_epsilon`). Cohorts drawn at
random cost less; their privacy losses are composed as distributions, discretised so that ε is
never too small (Doroshenko, Ghazi, Kamath, Kumar, Manurangsi, "Connect the Dots: Tighter Discrete
Approximations of Privacy Loss Distributions", PETS 2022; dp-accounting computes it). The smaller of
the two bounds counts.

**Cohorts of a fixed size**, m of N without replacement, q = m / N. If a release with every client
has δ(ε) for data that are replaced, the release with a random cohort has at most

    δ_q(ε) = q δ(ln(1 + (e^ε − 1) / q)),  ε ≥ 0

(Balle, Barthe, Gaboardi, "Privacy Amplification by Subsampling", NeurIPS 2018, Theorem 11).
Replacing is symmetric, so the bound holds both ways, and δ(−ε) = 1 − e^−ε + e^−ε δ(ε) extends it to
the left. With α = e^ε it is convex in α: right of 1 it is δ of an affine argument, left of 1 a
perspective of that; at 1 the slope jumps from −1 + δ(0) − δ' to δ' = −Φ(−μ/2), upwards because
(1 − q)(2Φ(μ/2) − 1) ≥ 0. So there is a pair of distributions with exactly this profile, it
dominates the release, and such pairs compose (Zhu, Dong, Wang, "Optimal Accounting of Differential
Privacy via Characteristic Function", AISTATS 2022).

**Poisson cohorts**: a mixture of two Gaussians, which is worst where all other updates are zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from fedtail.errors import missing_extra
from fedtail.privacy.gaussian import smallest, spent_epsilon

INTERVAL = 1e-3
"""Privacy losses are rounded up to multiples of it; ε comes out too large by about as much."""
TAIL = 1e-14
"""Losses that are rarer count as infinite: as so much δ a release."""
LITTLE = 0.1
"""Below this σ / S one release has an ε of hundreds, whoever is drawn: not worth distributions."""


class Release(NamedTuple):
    """The noisy sums of one round, over one cohort.

    Attributes
    ----------
    asked, clients
        How many clients the cohort has (or has in the mean), drawn from how many; as many if it is
        not drawn by chance.
    weight
        How many sums one client is in; two tasks in one sum count as four sums.
    poisson
        Whether each client is drawn on its own.
    """

    asked: int
    clients: int
    weight: float = 1.0
    poisson: bool = False


Releases = Mapping[Release, int]


def spent(releases: Releases, noise: float, delta: float, distance: float = 2.0) -> float:
    """Return ε at δ of some releases.

    Parameters
    ----------
    releases
        How often each happens.
    noise
        σ / S.
    delta
        δ.
    distance
        How far neighbours' sums lie apart, in S: 2 for replaced data, 1 for a client left out.
    """
    weight = sum(release.weight * count for release, count in releases.items())
    if not weight:
        return 0.0
    always = spent_epsilon(noise, distance * math.sqrt(weight), delta)
    if noise < LITTLE or all(release.asked >= release.clients for release in releases):
        return always
    return min(always, _sampled(frozenset(releases.items()), noise, delta, distance))


def least_noise(releases: Releases, epsilon: float, delta: float, distance: float = 2.0) -> float:
    """Return the smallest σ / S with which some releases cost ε at δ at most."""
    return smallest(lambda noise: spent(releases, noise, delta, distance) <= epsilon, steps=25)


@cache
def _sampled(
    releases: frozenset[tuple[Release, int]], noise: float, delta: float, distance: float
) -> float:
    each = [
        _loss(release, noise / math.sqrt(release.weight), distance).self_compose(count)
        for release, count in sorted(releases)
    ]
    total = each[0]
    for loss in each[1:]:
        total = total.compose(loss)
    return float(total.get_epsilon_for_delta(delta))


def _loss(release: Release, noise: float, distance: float) -> Any:
    """Return the distribution of the privacy loss of one release."""
    pld, share = loss_distributions(), min(1.0, release.asked / release.clients)
    if release.poisson and share < 1:
        from dp_accounting import NeighboringRelation

        relation = NeighboringRelation
        return pld.from_gaussian_mechanism(
            noise,
            sampling_prob=share,
            value_discretization_interval=INTERVAL,
            neighboring_relation=(
                relation.REPLACE_ONE if distance == 2 else relation.ADD_OR_REMOVE_ONE
            ),
        )
    from dp_accounting.pld import pld_pmf

    largest = smallest(lambda epsilon: float(profile(epsilon, share, noise / distance)) <= TAIL, 8)
    steps = np.arange(-math.ceil(largest / INTERVAL), math.ceil(largest / INTERVAL) + 1)
    deltas = profile(steps * INTERVAL, share, noise / distance)
    return pld.PrivacyLossDistribution(
        pld_pmf.create_pmf_pessimistic_connect_dots(INTERVAL, steps, deltas)
    )


def profile(epsilon: float | np.ndarray, share: float, noise: float) -> np.ndarray:
    """Return δ(ε), for ε of any sign, of a Gaussian over a cohort of a fixed size.

    Parameters
    ----------
    epsilon
        ε.
    share
        q.
    noise
        σ over the sensitivity.
    """
    size = np.abs(np.asarray(epsilon, np.float64))
    # e^ε overflows where the 1 beside it does not count.
    near = np.log1p(np.expm1(np.minimum(size, 50)) / share)
    inner = np.where(size < 50, near, size - math.log(share))
    half, shift = 1 / (2 * noise), inner * noise
    found: np.ndarray = np.exp(_log_phi(half - shift)) - np.exp(inner + _log_phi(-half - shift))
    right = share * np.maximum(found, 0.0)
    left = -np.expm1(-size) + np.exp(-size) * right
    either: np.ndarray = np.array(np.where(np.asarray(epsilon) >= 0, right, left))
    return either


def _log_phi(x: np.ndarray) -> np.ndarray:
    found: np.ndarray = torch.special.log_ndtr(torch.as_tensor(x, dtype=torch.float64)).numpy()
    return found


def loss_distributions() -> Any:
    """Return dp-accounting's module, or say which extra it is in."""
    try:
        from dp_accounting.pld import privacy_loss_distribution as module
    except ImportError:
        what = "differential privacy with sampled clients"
        raise missing_extra(what, "dp-accounting", "privacy") from None
    return module
