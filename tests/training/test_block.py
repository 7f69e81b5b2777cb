"""Batches of a block are those of each client alone, and steps are those of torch's SGD."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedtail.training import ClassBalanced, LocalTraining, Shuffled
from fedtail.training.block import ClientBlock, Named, Rows, Stack, planned_batches

SIZES = (7, 0, 3, 9, 1, 6)
LABELS = [torch.arange(n) % 3 for n in SIZES]
FIRST = [0, 7, 7, 10, 19, 20]


@pytest.mark.parametrize("sampler", [Shuffled(), ClassBalanced()])
@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("fields", [{}, {"epochs": 2.5}, {"steps": 4}, {"batch_size": 1}])
def test_every_client_has_its_own_batches_in_its_own_order(
    fields: dict[str, Any], pairs: bool, sampler: Any
) -> None:
    local = LocalTraining(**{"batch_size": 3, **fields})
    plan, steps = planned_batches(local, sampler, LABELS, range(len(SIZES)), pairs)
    found: list[list[list[int]]] = [[] for _ in SIZES]
    for rows, places in plan:
        every = list(range(len(SIZES)))
        chosen = every[rows] if isinstance(rows, slice) else rows.tolist()
        for row, batch in zip(chosen, places.tolist(), strict=True):
            found[row].append([place - FIRST[row] for place in batch])
    for row, labels in enumerate(LABELS):
        stream = torch.Generator().manual_seed(row)
        alone = [b.tolist() for b in local.batches(sampler, labels, stream, pairs)]
        assert found[row] == alone
        assert steps[row] == len(alone)


def test_clients_that_do_the_same_step_do_it_at_once() -> None:
    plan, _ = planned_batches(LocalTraining(batch_size=3), Shuffled(), LABELS, range(6), False)
    # Full batches of 7, 3, 9 and 6 samples: the first of four clients, the second of three, the
    # third of one; then what is left of 7 and of 1, a sample each.
    assert [tuple(places.shape) for _, places in plan] == [(4, 3), (3, 3), (1, 3), (2, 1)]


def test_nobody_has_samples() -> None:
    assert planned_batches(
        LocalTraining(), Shuffled(), [torch.zeros(0).long()] * 2, [1, 2], False
    ) == (
        [],
        [0, 0],
    )


FIELDS: list[dict[str, Any]] = [
    {},
    {"momentum": 0.9},
    {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    {"clip": 0.5, "weight_decay": 0.1},
]


@pytest.mark.parametrize("fields", FIELDS)
def test_steps_are_those_of_sgd(fields: dict[str, Any]) -> None:
    local = LocalTraining(lr=0.1, **fields)
    start = torch.tensor([[1.0, -2.0], [0.5, 3.0], [0.0, 1.0]])
    block = ClientBlock({"w": start.clone()}, {}, local, 0.1)

    def square(
        weights: Named, buffers: Named, rows: Rows, x: Tensor, y: Tensor
    ) -> dict[str, Tensor]:
        return {"w": 2 * weights["w"]}

    x, y = torch.zeros(3, 1), torch.zeros(3, 1)
    block.step(square, slice(0, 3), x, y)
    block.step(square, torch.tensor([0, 2]), x[:2], y[:2])  # the second client has finished
    for row, steps in enumerate((2, 1, 2)):
        w = torch.nn.Parameter(start[row].clone())
        optimizer = local.make_optimizer([w], 1, 1)
        for _ in range(steps):
            optimizer.zero_grad()
            torch.autograd.backward(w.square().sum())
            if local.clip is not None:
                torch.nn.utils.clip_grad_norm_([w], local.clip)
            optimizer.step()
        assert torch.allclose(block.weights["w"][row], w.detach(), atol=1e-6)


def test_what_all_clients_have_stands_there_once() -> None:
    common = torch.ones(2)
    trees = [{"a": common, "b": (torch.full((2,), float(k)), k)} for k in range(3)]
    stack = Stack.of(trees)
    assert stack.dims == {"a": None, "b": (0, 0)}
    some = stack.of_rows(slice(1, 3))
    assert some["a"] is common
    assert some["b"][0].tolist() == [[1.0, 1.0], [2.0, 2.0]]
    assert some["b"][1].tolist() == [1, 2]
