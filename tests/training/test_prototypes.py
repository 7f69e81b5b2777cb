"""Tables of class gradients, with one number a class."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedtail.training.prototypes import as_table, no_prototypes, renewed, sum_outside


def table(**rows: float) -> dict[str, Tensor]:
    """Return a table of a head with one class and one feature: ``c3=2.0`` is G_3 = 2."""
    classes = torch.tensor([int(name[1:]) for name in rows], dtype=torch.int64)
    values = torch.tensor(list(rows.values()), dtype=torch.float32)
    return as_table((classes, values.reshape(-1, 1, 1), 10 * values.reshape(-1, 1)))


def values(of: dict[str, Tensor]) -> dict[int, float]:
    return dict(zip(of["classes"].tolist(), of["weight"].flatten().tolist(), strict=True))


@pytest.mark.parametrize("bias", [True, False])
def test_an_empty_table_has_the_shapes_of_the_head(bias: bool) -> None:
    found = no_prototypes(nn.Linear(5, 3, bias=bias))
    shapes = {"classes": (0,), "weight": (0, 3, 5), "bias": (0, 3)}
    assert {n: tuple(t.shape) for n, t in found.items()} == {
        n: shape for n, shape in shapes.items() if bias or n != "bias"
    }


def test_reported_classes_are_replaced_and_the_others_stay() -> None:
    found = renewed(table(c1=1.0, c4=4.0), table(c0=7.0, c4=9.0))
    assert values(found) == {0: 7.0, 1: 1.0, 4: 9.0}
    assert found["bias"].flatten().tolist() == [70.0, 10.0, 90.0]


def test_nothing_reported_and_nothing_known() -> None:
    assert values(renewed(table(c1=1.0), table())) == {1: 1.0}
    assert values(renewed(table(), table(c1=1.0))) == {1: 1.0}
    assert values(renewed(table(), table())) == {}


@pytest.mark.parametrize(
    ("fill", "total"),
    [
        # Of five classes 1 is held, 2 and 4 are known, 0 and 3 are not: they count as (2 + 4) / 2.
        (True, 2 + 4 + 3 + 3),
        (False, 2 + 4),
    ],
)
def test_the_sum_over_the_classes_that_are_not_held(fill: bool, total: float) -> None:
    found = sum_outside(table(c1=1.0, c2=2.0, c4=4.0), torch.tensor([1]), 5, fill)
    assert found["weight"].tolist() == [[total]]
    assert found["bias"].tolist() == [10 * total]
    assert set(found) == {"weight", "bias"}


def test_nothing_outside_is_zero() -> None:
    assert sum_outside(table(c1=1.0), torch.tensor([1]), 5, True)["weight"].tolist() == [[0.0]]
    assert sum_outside(table(), torch.tensor([1]), 5, True)["weight"].tolist() == [[0.0]]
