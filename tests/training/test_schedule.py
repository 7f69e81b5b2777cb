"""Schedules by hand; rounds count from 1."""

from __future__ import annotations

import math

import pytest

from fedtail import FedtailError
from fedtail.training import Constant, Cosine, Linear, LocalTraining, Schedule, StepDecay


def factors(schedule: Schedule, rounds: int) -> list[float]:
    return [schedule.factor(number, rounds) for number in range(1, rounds + 1)]


def test_constant() -> None:
    assert factors(Constant(), 3) == [1.0, 1.0, 1.0]


def test_step() -> None:
    # Of 10 rounds, half are done before round 6 and eight before round 9.
    expected = [1.0] * 5 + [0.1] * 3 + [0.01] * 2
    assert factors(StepDecay(at=(0.5, 0.8), gamma=0.1), 10) == pytest.approx(expected)


def test_step_drops_in_the_round_it_names_whatever_the_rounding() -> None:
    # 0.55 x 100 is 55.00000000000001 in floating point; 55 rounds are done before round 56.
    schedule = StepDecay(at=(0.55,), gamma=0.5)
    assert [schedule.factor(number, 100) for number in (55, 56)] == [1.0, 0.5]


@pytest.mark.parametrize("at", [(10.0,), (1.0,), (-0.1,)])
def test_step_takes_shares_of_the_rounds_and_no_rounds(at: tuple[float, ...]) -> None:
    with pytest.raises(FedtailError, match=r"'at\.0' = .* is refused"):
        StepDecay(at=at)


def test_cosine() -> None:
    # (1 + cos(π (r - 1) / 4)) / 2
    half = math.sqrt(0.5)
    assert factors(Cosine(), 4) == pytest.approx([1.0, (1 + half) / 2, 0.5, (1 - half) / 2])


def test_cosine_with_a_floor() -> None:
    # 0.2 + 0.8 / 2 in the middle
    assert Cosine(floor=0.2).factor(3, 4) == pytest.approx(0.6)


def test_linear() -> None:
    assert factors(Linear(), 4) == pytest.approx([1.0, 0.75, 0.5, 0.25])


def test_linear_from_the_middle_to_a_floor() -> None:
    # Constant until 2 of 4 rounds are done; one of the last two is half the way from 1 to 0.2.
    assert factors(Linear(start=0.5, floor=0.2), 4) == pytest.approx([1.0, 1.0, 1.0, 0.6])


@pytest.mark.parametrize("name", list(Schedule.registry))
@pytest.mark.parametrize("rounds", [1, 2, 7])
def test_every_factor_is_a_positive_part_of_the_base_rate(name: str, rounds: int) -> None:
    found = factors(Schedule.model_validate(name), rounds)
    assert all(0 < factor <= 1 for factor in found)
    assert found == sorted(found, reverse=True)


def test_the_rate_is_base_times_factor() -> None:
    assert LocalTraining(lr=0.4, schedule=Linear()).rate(3, 4) == pytest.approx(0.2)
