"""What clients remember: whose is new, and what is to be forgotten."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedtail.engines.base import ClientStates


def number(value: int) -> dict[str, Tensor]:
    return {"n": torch.tensor(value)}


def values(states: ClientStates) -> dict[int, int]:
    return {client: int(state["n"]) for client, state in states.items()}


def test_only_what_is_set_is_new() -> None:
    states = ClientStates()
    states.update({1: number(1), 2: number(2)})  # a checkpoint has them
    states[2] = number(20)
    states[3] = number(3)
    assert states.news() == {2, 3}
    assert states.news() == frozenset()


def test_a_block_is_forgotten_also_if_it_fails_and_within_another() -> None:
    states = ClientStates()
    states[1], states[2] = number(1), number(2)
    states.news()
    with pytest.raises(RuntimeError), states.forgotten():
        states[1] = number(10)
        states[1] = number(11)
        with states.forgotten():
            states[1], states[3] = number(12), number(30)
        assert values(states) == {1: 11, 2: 2}
        states[4] = number(40)
        raise RuntimeError
    assert values(states) == {1: 1, 2: 2}
    assert states.news() == frozenset()
    states[1] = number(5)
    assert states.news() == {1}
