"""The Gaussian mechanism: how much noise for (ε, δ), and what a noise is worth.

Adding N(0, σ²) to each number of something whose L2 sensitivity is Δ is (ε, δ)-differentially
private exactly if δ ≥ `spent_delta`(σ, Δ, ε): Balle, Wang, "Improving the Gaussian Mechanism for
Differential Privacy: Analytical Calibration and Optimal Denoising", ICML 2018, Theorem 8. The older
rule σ ≥ c Δ / ε with c² > 2 ln(1.25 / δ) (Dwork, Roth, 2014, Theorem A.1) is proved for ε < 1 only.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from fedtail.errors import FedtailError


def paper_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """Return σ = c Δ / ε with c = √(2 ln(1.25 / δ)): the rule that GBME-p quotes.

    It gives a guarantee for ε < 1. Above, ask `spent_epsilon` what the noise is worth.
    """
    _check(epsilon, delta, sensitivity)
    return math.sqrt(2 * math.log(1.25 / delta)) * sensitivity / epsilon


def analytic_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """Return the smallest σ that is (ε, δ)-differentially private, for any ε > 0; 0 for ε = ∞."""
    _check(epsilon, delta, sensitivity)
    if math.isinf(epsilon):
        return 0.0
    return sensitivity * smallest(lambda sigma: spent_delta(sigma, 1.0, epsilon) <= delta)


def spent_delta(sigma: float, sensitivity: float, epsilon: float) -> float:
    """Return the smallest δ of a noise at a given ε ≥ 0.

    δ = Φ(Δ/2σ − εσ/Δ) − e^ε Φ(−Δ/2σ − εσ/Δ), Φ the normal distribution function.
    """
    half, shift = sensitivity / (2 * sigma), epsilon * sigma / sensitivity
    # In logarithms: e^ε overflows where Φ underflows.
    inner, outer = _log_phi(half - shift), epsilon + _log_phi(-half - shift)
    return max(0.0, math.exp(inner) - math.exp(min(outer, inner)))


def spent_epsilon(sigma: float, sensitivity: float, delta: float) -> float:
    """Return the smallest ε of a noise at a given δ; infinite without noise."""
    if sigma == 0:
        return math.inf
    if spent_delta(sigma, sensitivity, 0.0) <= delta:
        return 0.0
    return smallest(lambda epsilon: spent_delta(sigma, sensitivity, epsilon) <= delta)


def _log_phi(x: float) -> float:
    return float(torch.special.log_ndtr(torch.tensor(x, dtype=torch.float64)))


def smallest(enough: Callable[[float], bool], steps: int = 60) -> float:
    """Return the smallest positive number for which a monotone condition holds, by bisection.

    The interval that is halved so many times is one power of two; it has 2^52 numbers.
    """
    # First the power of two below which it fails and at which it holds, upwards or downwards: σ may
    # be 1e-6 or 1e6, and halving from [0, 1e6] would have no digits left for the small ones.
    low, high = 0.0, 1.0
    while not enough(high):
        low, high = high, 2 * high
    while enough(high / 2):
        high /= 2
    low = max(low, high / 2)
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _check(epsilon: float, delta: float, sensitivity: float) -> None:
    if not epsilon > 0:
        raise FedtailError(f"epsilon is above 0, not {epsilon}")
    if not 0 < delta < 1:
        raise FedtailError(f"delta is between 0 and 1, not {delta}")
    if not 0 < sensitivity < math.inf:
        raise FedtailError(f"the sensitivity is above 0 and finite, not {sensitivity}")
