"""The first trials of a search: the same rates for every method, spread evenly."""

from __future__ import annotations

from typing import Any

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from fedtail import BalanceFL, FedAvg, FedLC, Method
from fedtail.study.draws import first_draw
from fedtail.study.space import make_space

RATE = {"local.lr": FloatDistribution(0.003, 1.0, log=True)}


def test_the_first_trial_is_the_method_as_it_is() -> None:
    space = make_space(BalanceFL, (), {}, {})
    method = BalanceFL(ki_weight=3.0, local={"lr": 0.2})
    assert first_draw(space, 0, method) == {
        "ki_weight": 3.0,
        "sampler.gamma": 0.0,
        "local.lr": 0.2,
    }


def test_what_is_short_for_a_field_of_the_loss_is_found_there() -> None:
    found = first_draw(make_space(FedLC, (), {}, {}), 0, FedLC(tau=3.0, absent=0.5))
    assert (found["tau"], found["absent"]) == (3.0, 0.5)


def test_a_value_outside_its_range_is_moved_and_none_is_the_middle() -> None:
    assert first_draw(RATE, 0, FedAvg(local={"lr": 5.0})) == {"local.lr": 1.0}
    # A field that the method lacks: the middle of 0.1..10 is √(0.1·10) = 1.
    odd = {"mu": FloatDistribution(0.1, 10.0, log=True)}
    assert first_draw(odd, 0, FedAvg())["mu"] == pytest.approx(1)
    grid = {"local.lr": CategoricalDistribution([0.1, 0.2, 0.4])}
    assert first_draw(grid, 0, FedAvg(local={"lr": 0.4})) == {"local.lr": 0.4}
    assert first_draw(grid, 0, FedAvg(local={"lr": 0.3})) == {"local.lr": 0.2}


def test_choices_are_known_again_as_they_are_typed() -> None:
    typed = {
        "local.lr": CategoricalDistribution(["0.0001", "0.001", "0.1"]),
        "local.nesterov": CategoricalDistribution(["true", "false"]),
        "sampler": CategoricalDistribution(["class_balanced", "balanced", "uniform"]),
    }
    method: Method[Any] = FedAvg(local={"lr": 0.1}, sampler="class_balanced")
    assert first_draw(typed, 0, method) == {
        "local.lr": "0.1",
        "local.nesterov": "false",
        "sampler": "class_balanced",
    }


def test_rates_halve_the_range_again_and_again() -> None:
    # 1/2 is left to the method's own; then 1/4, 3/4, 1/8, 5/8 of the logarithm of 0.003..1, whose
    # ends are 333.3 times apart: 0.003 · 333.3^(1/4) = 0.01282, and so on.
    found = [first_draw(RATE, number, FedAvg())["local.lr"] for number in range(1, 5)]
    assert found == pytest.approx([0.01282, 0.23405, 0.0062, 0.11319], rel=1e-3)


@pytest.mark.parametrize("name", ["fedlc", "balancefl", "creff", "slac", "ccvr", "centralised"])
def test_all_methods_are_tried_at_the_same_rates(name: str) -> None:
    kind = Method.registry[name]
    space = make_space(kind, (), {}, {})
    mine, fedavgs = (
        [first_draw(each, number, method)["local.lr"] for number in range(10)]
        for each, method in ((space, kind()), (RATE, FedAvg()))
    )
    assert mine == fedavgs


def test_whole_numbers_and_lists_have_all_their_values() -> None:
    space = {
        "whole": IntDistribution(2, 4),
        "by_log": IntDistribution(1, 9, log=True),
        "listed": CategoricalDistribution(["a", "b"]),
    }
    drawn = [first_draw(space, number, FedAvg()) for number in range(1, 40)]
    assert {each["whole"] for each in drawn} == {2, 3, 4}
    assert {each["by_log"] for each in drawn} == set(range(1, 10))
    assert {each["listed"] for each in drawn} == {"a", "b"}
    # Base 2: 1/4, 3/4 of 2..5; base 3: 10^(2/3) = 4.6, 10^(1/9) = 1.3; base 5: 2/5 and 3/5.
    assert drawn[:2] == [
        {"whole": 2, "by_log": 4, "listed": "a"},
        {"whole": 4, "by_log": 1, "listed": "b"},
    ]


def test_nothing_to_search_is_nothing() -> None:
    assert [first_draw({}, number, FedAvg()) for number in (0, 1)] == [{}, {}]
