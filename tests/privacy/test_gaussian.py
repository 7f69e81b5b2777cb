"""Noise for (ε, δ), and what a noise is worth."""

from __future__ import annotations

import math

import pytest

from fedtail import FedtailError
from fedtail.privacy import analytic_sigma, paper_sigma, spent_delta, spent_epsilon

EPSILONS = (0.1, 1.0, 5.0, 10.0, 20.0, 100.0)


def phi(x: float) -> float:
    """Return the normal distribution function."""
    return 0.5 * math.erfc(-x / math.sqrt(2))


@pytest.mark.parametrize(
    ("epsilon", "ratio"), [(5, 0.546), (10, 0.273), (20, 0.137), (100, 0.0273)]
)
def test_the_papers_noise(epsilon: float, ratio: float) -> None:
    # δ = 0.03: c = √(2 ln(1.25 / 0.03)) = √(2 · 3.72970) = 2.7312, and σ / Δ = c / ε.
    assert paper_sigma(epsilon, 0.03) == pytest.approx(ratio, abs=5e-4)
    assert paper_sigma(1.0, 0.03) == pytest.approx(2.7312, abs=1e-4)
    assert paper_sigma(epsilon, 0.03, sensitivity=4.0) == 4 * paper_sigma(epsilon, 0.03)


def test_delta_by_hand() -> None:
    # ε = 0: Φ(Δ/2σ) − Φ(−Δ/2σ) is the total variation between N(0, σ²) and N(Δ, σ²).
    assert spent_delta(0.5, 1.0, 0.0) == pytest.approx(phi(1.0) - phi(-1.0), rel=1e-12)
    # ε = 1, σ = Δ = 2: Φ(1/2 − 1) − e Φ(−1/2 − 1).
    assert spent_delta(2.0, 2.0, 1.0) == pytest.approx(phi(-0.5) - math.e * phi(-1.5), rel=1e-12)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("delta", [1e-8, 0.03, 0.5])
def test_the_analytic_noise_is_just_enough(epsilon: float, delta: float) -> None:
    sigma = analytic_sigma(epsilon, delta, 3.0)
    assert spent_delta(sigma, 3.0, epsilon) == pytest.approx(delta, rel=1e-9)
    assert spent_delta(0.999 * sigma, 3.0, epsilon) > delta
    assert spent_epsilon(sigma, 3.0, delta) == pytest.approx(epsilon, rel=1e-9)
    assert analytic_sigma(epsilon, delta) == pytest.approx(sigma / 3, rel=1e-12)


def test_what_the_papers_noise_is_worth() -> None:
    # Below 1 the quoted theorem holds, and wastes noise. At 5 it does not hold, yet the noise
    # suffices; from 10 on it does not: less than the exact noise, and a larger ε.
    assert spent_epsilon(paper_sigma(0.5, 0.03), 1.0, 0.03) < 0.5
    worth = [spent_epsilon(paper_sigma(e, 0.03), 1.0, 0.03) for e in (5, 10, 20, 100)]
    assert worth == pytest.approx([4.443, 12.79, 39.70, 738.2], rel=1e-3)
    assert paper_sigma(5, 0.03) > analytic_sigma(5, 0.03)
    assert paper_sigma(10, 0.03) < analytic_sigma(10, 0.03)


def test_a_huge_epsilon_neither_overflows_nor_hangs() -> None:
    # Where e^ε is no number any more: Φ(Δ/2σ − εσ/Δ) decides, so that Δ/2σ − εσ/Δ ≈ Φ⁻¹(δ).
    sigma = analytic_sigma(2000.0, 0.03)
    assert 0.5 / sigma - 2000 * sigma == pytest.approx(-1.88, abs=0.1)


def test_the_ends() -> None:
    assert analytic_sigma(math.inf, 0.03) == paper_sigma(math.inf, 0.03) == 0.0
    assert spent_epsilon(0.0, 1.0, 0.03) == math.inf
    # Noise so wide that N(0, σ²) and N(Δ, σ²) differ by less than δ costs nothing.
    assert spent_epsilon(100.0, 1.0, 0.03) == 0.0


@pytest.mark.parametrize("values", [(0.0, 0.1, 1.0), (1.0, 0.0, 1.0), (1.0, 1.0, 1.0), (1, 0.1, 0)])
def test_wrong_values_are_refused(values: tuple[float, float, float]) -> None:
    for rule in (paper_sigma, analytic_sigma):
        with pytest.raises(FedtailError, match=r"epsilon|delta|sensitivity"):
            rule(*values)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_dp_accounting_agrees(epsilon: float) -> None:
    accounting = pytest.importorskip("dp_accounting", reason="needs the extra privacy")
    delta = 0.03
    expected = accounting.get_sigma_gaussian(epsilon, delta)
    assert analytic_sigma(epsilon, delta) == pytest.approx(expected, rel=1e-6)
    sigma = paper_sigma(epsilon, delta)
    worth = accounting.get_epsilon_gaussian(sigma, delta)
    assert spent_epsilon(sigma, 1.0, delta) == pytest.approx(worth, rel=1e-6)
