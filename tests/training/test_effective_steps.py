"""How far local SGD goes, by closed forms and by torch's own optimiser."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedtail.training.effective_steps import effective_steps


@pytest.mark.parametrize("steps", [0, 1, 2, 7])
def test_plain_steps_count_as_many(steps: int) -> None:
    assert effective_steps(steps) == steps


@pytest.mark.parametrize("steps", [0, 1, 2, 7])
def test_momentum_has_the_closed_form_of_the_paper(steps: int) -> None:
    # Σ_{s=1..Q} (1 - ρ^s) / (1 - ρ)
    rho = 0.9
    expected = sum((1 - rho**s) / (1 - rho) for s in range(1, steps + 1))
    assert effective_steps(steps, rho) == pytest.approx(expected)


@pytest.mark.parametrize("steps", [0, 1, 2, 7])
def test_a_proximal_term_has_the_closed_form_of_the_paper(steps: int) -> None:
    # Σ_{s=0..Q-1} (1 - α)^s
    expected = sum((1 - 0.3) ** s for s in range(steps))
    assert effective_steps(steps, pull=0.3) == pytest.approx(expected)


def test_three_steps_by_hand() -> None:
    # ρ = 1/2, α = 1/4: g = 1, v = 1, x = 1; g = 3/4, v = 5/4, x = 9/4; g = 7/16, v = 17/16,
    # x = 53/16.
    assert effective_steps(3, 0.5, pull=0.25) == 53 / 16


@pytest.mark.parametrize(
    ("momentum", "nesterov", "mu"),
    [(0.0, False, 0.0), (0.9, False, 0.0), (0.9, True, 0.0), (0.0, False, 2.0), (0.9, True, 2.0)],
)
def test_torch_goes_as_far(momentum: float, nesterov: bool, mu: float) -> None:
    # A constant gradient of 3 and rate 0.1 from w_t = 1: w = 1 - 0.1 · 3 · a.
    w = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
    optimizer = torch.optim.SGD([w], lr=0.1, momentum=momentum, nesterov=nesterov)
    for _ in range(5):
        w.grad = 3 + mu * (w.detach() - 1)
        optimizer.step()
    a = effective_steps(5, momentum, nesterov, 0.1 * mu)
    assert float(w.detach()) == pytest.approx(1 - 0.3 * a)
