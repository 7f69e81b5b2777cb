from __future__ import annotations

import math

import pytest

from fedtail.privacy.accounting import Release, least_noise, spent
from fedtail.privacy.gaussian import analytic_sigma, spent_epsilon

DELTA = 1e-5


def test_nothing_released_costs_nothing() -> None:
    assert spent({}, 1.0, DELTA) == 0.0


def test_releases_of_everybody_compose_exactly() -> None:
    # T Gaussians of noise z are one of noise z / √T.
    found = spent({Release(10, 10): 16}, 4.0, DELTA)
    assert found == pytest.approx(spent_epsilon(1.0, 1.0, DELTA), rel=1e-12)
    # ε of σ = Δ at δ = 1e-5 by the analytic mechanism: known to be 4.3772 (Balle, Wang, 2018).
    assert found == pytest.approx(4.3772, abs=1e-3)


def test_two_tasks_in_one_sum_are_four_sums() -> None:
    assert spent({Release(6, 6, 4.0): 1}, 2.0, DELTA) == spent({Release(6, 6): 4}, 2.0, DELTA)


def test_sampling_helps_where_cohorts_are_small() -> None:
    # Known value: dp-accounting's own bound for 10 of 1000 clients, noise 2, 100 rounds.
    import dp_accounting as dp
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant(
        orders=[*range(2, 33)], neighboring_relation=dp.NeighboringRelation.REPLACE_ONE
    )
    event = dp.SampledWithoutReplacementDpEvent(1000, 10, dp.GaussianDpEvent(2.0))
    expected = accountant.compose(event, 100).get_epsilon(DELTA)
    found = spent({Release(10, 1000): 100}, 2.0, DELTA)
    assert found <= expected * (1 + 1e-9)
    assert found == pytest.approx(expected, rel=0.1)
    assert found < spent({Release(1000, 1000): 100}, 2.0, DELTA) / 3


def test_sampling_never_costs_more_than_being_asked_every_time() -> None:
    for noise in (0.5, 1.0, 4.0):
        everybody = spent({Release(6, 6): 3}, noise, DELTA)
        assert spent({Release(5, 6): 3}, noise, DELTA) <= everybody


@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_the_noise_for_a_budget_spends_the_budget(epsilon: float) -> None:
    rounds = {Release(10, 10): 20}
    noise = least_noise(rounds, epsilon, DELTA)
    assert noise == pytest.approx(analytic_sigma(epsilon, DELTA) * math.sqrt(20), rel=1e-5)
    assert spent(rounds, noise, DELTA) <= epsilon
    assert spent(rounds, noise * 0.999, DELTA) > epsilon
