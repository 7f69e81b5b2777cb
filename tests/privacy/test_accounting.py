from __future__ import annotations

import math

import numpy as np
import pytest

from fedtail.privacy.accounting import Release, least_noise, profile, spent
from fedtail.privacy.gaussian import analytic_sigma, spent_delta, spent_epsilon

DELTA = 1e-5


def test_nothing_released_costs_nothing() -> None:
    assert spent({}, 1.0, DELTA) == 0.0


def test_releases_of_everybody_compose_exactly() -> None:
    # T Gaussians of noise z are one of noise z / √T.
    # Data that are replaced move a sum by 2S.
    found = spent({Release(10, 10): 16}, 8.0, DELTA)
    assert found == pytest.approx(spent_epsilon(1.0, 1.0, DELTA), rel=1e-12)
    # ε of σ = Δ at δ = 1e-5 by the analytic mechanism: known to be 4.3772 (Balle, Wang, 2018).
    assert found == pytest.approx(4.3772, abs=1e-3)


def test_two_tasks_in_one_sum_are_four_sums() -> None:
    assert spent({Release(6, 6, 4.0): 1}, 2.0, DELTA) == spent({Release(6, 6): 4}, 2.0, DELTA)


SETTINGS = {
    # clients, cohort, rounds, σ / 2S, δ: what Rényi accounting gives, this profile, a lower bound.
    "100": (100, 10, 100, 1.5, 1e-5, 8.17, 3.89, 3.53),
    "1000": (1000, 20, 200, 0.8, 1e-5, 5.29, 3.57, 3.25),
    "long": (1000, 50, 500, 1.0, 1e-6, 17.15, 9.94, 8.46),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_cohorts_of_a_fixed_size_cost_less_than_renyi_and_more_than_the_lower_bound(
    name: str,
) -> None:
    clients, cohort, rounds, z, delta, renyi, known, least = SETTINGS[name]
    found = spent({Release(cohort, clients): rounds}, 2 * z, delta)
    assert least < found < renyi
    assert found == pytest.approx(known, abs=0.01)
    assert renyi_epsilon(clients, cohort, rounds, z, delta) == pytest.approx(renyi, abs=0.01)


def renyi_epsilon(clients: int, cohort: int, rounds: int, z: float, delta: float) -> float:
    """Return the bound of Wang, Balle and Kasiviswanathan (2019), by dp-accounting."""
    import dp_accounting as dp
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant(
        orders=[1.1, 1.25, 1.5, 1.75, *range(2, 25), 28, 32, 48],
        neighboring_relation=dp.NeighboringRelation.REPLACE_ONE,
    )
    event = dp.SampledWithoutReplacementDpEvent(clients, cohort, dp.GaussianDpEvent(z))
    return float(accountant.compose(event, rounds).get_epsilon(delta))


@pytest.mark.parametrize(
    ("name", "replace", "remove"),
    [("100", 2.75, 1.39), ("1000", 1.38, 0.78), ("long", 5.55, 2.87)],
)
def test_poisson_cohorts_cost_less_and_who_is_left_out_less_than_who_is_replaced(
    name: str, replace: float, remove: float
) -> None:
    clients, cohort, rounds, z, delta, *_ = SETTINGS[name]
    drawn = {Release(cohort, clients, poisson=True): rounds}
    assert spent(drawn, 2 * z, delta, 2.0) == pytest.approx(replace, abs=0.01)
    assert spent(drawn, 2 * z, delta, 1.0) == pytest.approx(remove, abs=0.01)


def test_the_profile_is_that_of_a_cohort_of_two_by_hand() -> None:
    # q = 1/2 and ε = ln 2: the inner ε is ln(1 + (2 − 1) / q) = ln 3, and δ is half of that there.
    whole = spent_delta(0.8, 1.0, math.log(3.0))
    assert float(profile(math.log(2.0), 0.5, 0.8)) == pytest.approx(whole / 2, rel=1e-12)
    # Left of zero: 1 − e^−ε + e^−ε δ(ε).
    assert float(profile(-math.log(2.0), 0.5, 0.8)) == pytest.approx(0.5 + whole / 4, rel=1e-12)
    # Nothing drawn by chance: the Gaussian's own.
    assert float(profile(1.0, 1.0, 0.8)) == pytest.approx(spent_delta(0.8, 1.0, 1.0), rel=1e-9)


def test_the_profile_is_convex_in_e_to_the_epsilon_so_that_it_composes() -> None:
    alpha = np.linspace(0.02, 40, 4001)
    found = profile(np.log(alpha), 0.1, 1.5)
    assert (np.diff(found, 2) > -1e-9).all()
    assert (np.diff(found) <= 0).all()


def test_the_true_loss_of_a_pair_lies_below_the_profile() -> None:
    # N clients with updates −S, one of which may be S instead: the cohort's sum is q N(2S) +
    # (1 − q) N(0) (moved to 0), against N(0). Its δ(ε) by numerical integration.
    q, z = 0.1, 1.5
    x = np.linspace(-12, 14, 260_001)
    density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    moved = q * np.exp(-((x - 1 / z) ** 2) / 2) / math.sqrt(2 * math.pi) + (1 - q) * density
    for epsilon in (0.01, 0.05, 0.1, 0.2):
        for one, other in ((moved, density), (density, moved)):
            excess = np.maximum(one - math.exp(epsilon) * other, 0).sum() * (x[1] - x[0])
            assert excess <= float(profile(epsilon, q, z)) + 1e-9


def test_sampling_never_costs_more_than_being_asked_every_time() -> None:
    for noise in (0.5, 1.0, 4.0):
        everybody = spent({Release(6, 6): 3}, noise, DELTA)
        assert spent({Release(5, 6): 3}, noise, DELTA) <= everybody


@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_the_noise_for_a_budget_spends_the_budget(epsilon: float) -> None:
    rounds = {Release(10, 10): 20}
    noise = least_noise(rounds, epsilon, DELTA)
    assert noise == pytest.approx(2 * analytic_sigma(epsilon, DELTA) * math.sqrt(20), rel=1e-5)
    assert spent(rounds, noise, DELTA) <= epsilon
    assert spent(rounds, noise * 0.999, DELTA) > epsilon
