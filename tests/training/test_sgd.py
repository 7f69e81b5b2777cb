"""SGD of our own against torch's, bit by bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fedtail.training.sgd import SGD, differentiate


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"weight_decay": 0.01},
        {"momentum": 0.9},
        {"momentum": 0.9, "weight_decay": 0.01},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    ],
)
def test_the_bits_are_those_of_torch(fields: dict[str, Any]) -> None:
    draw = torch.Generator().manual_seed(0)
    start = [torch.randn(7, 5, generator=draw), torch.randn(5, generator=draw), torch.ones(3)]
    mine, theirs = ([nn.Parameter(t.clone()) for t in start] for _ in range(2))
    ours, reference = SGD(mine, lr=0.05, **fields), torch.optim.SGD(theirs, lr=0.05, **fields)
    for step in range(4):
        ours.zero_grad()
        reference.zero_grad()
        # The last parameter has a gradient in every second step only.
        for a, b in list(zip(mine, theirs, strict=True))[: 3 - step % 2]:
            a.grad = torch.randn(a.shape, generator=draw)
            b.grad = a.grad.clone()
        ours.step()
        reference.step()
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    for a, b in zip(mine, theirs, strict=True):
        kept, known = ours.state.get(a, {}), reference.state.get(b, {})
        assert kept.keys() == known.keys()
        assert all(torch.equal(kept[key], known[key]) for key in kept)


def test_a_rate_that_is_changed_counts_from_the_next_step_on() -> None:
    weight = nn.Parameter(torch.tensor([1.0]))
    optimizer = SGD([weight], lr=0.5)
    weight.grad = torch.tensor([1.0])
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.25
    optimizer.step()
    # 1 - 0.5 · 1 - 0.25 · 1
    assert weight.tolist() == [0.25]


def test_gradients_are_those_of_autograd_and_add_up() -> None:
    mine, theirs = (nn.Linear(4, 3) for _ in range(2))
    theirs.load_state_dict(mine.state_dict())
    x, y = (
        torch.randn(5, 4, generator=torch.Generator().manual_seed(0)),
        torch.tensor([0, 1, 2, 0, 1]),
    )
    for _ in range(2):
        differentiate(nn.functional.cross_entropy(mine(x), y))
        torch.autograd.backward(nn.functional.cross_entropy(theirs(x), y))
    for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
        assert a.grad is not None and b.grad is not None
        assert torch.equal(a.grad, b.grad)


def test_what_has_no_gradient_is_refused_as_by_autograd() -> None:
    with pytest.raises(RuntimeError, match="does not require grad"):
        differentiate(torch.ones(()))
