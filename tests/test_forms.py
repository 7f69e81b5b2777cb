"""What an update is held against, and the words in which it is refused."""

from __future__ import annotations

import pytest
import torch

from fedtail.forms import (
    COUNT,
    LARGEST,
    SAMPLES,
    ByClass,
    Form,
    Like,
    Number,
    defect,
    like,
    not_finite,
)
from fedtail.protocol import Payload, Scalar

# A weight of shape (2, 3); rows of two numbers for each of the client's classes, of four; a count
# of every class; and two scalars.
FORM = (
    Form()
    .group("model", {"w": Like((2, 3))})
    .group("grad", {"bias": Like((2,))}, ByClass(4))
    .group("counts", {"all": Like((4,), torch.int64, low=0, counted=True)})
    .numbers(samples=SAMPLES, gap=Number(low=0))
)


def payload(scalars: dict[str, Scalar] | None = None, **tensors: torch.Tensor | None) -> Payload:
    """Return a good update with some tensors and scalars replaced; none takes one away."""
    good = {
        "model/w": torch.ones(2, 3),
        "grad/classes": torch.tensor([1, 3]),
        "grad/bias": torch.zeros(2, 2),
        "counts/all": torch.tensor([0, 2, 0, 3]),
    }
    changed = {**good, **{name.replace("__", "/"): t for name, t in tensors.items()}}
    facts: dict[str, Scalar] = {"samples": 5, "gap": 0.5, **(scalars or {})}
    return Payload({n: t for n, t in changed.items() if t is not None}, facts)


def refused(**changes: torch.Tensor | None) -> str:
    return defect(payload(None, **changes), FORM, announced=5)


def test_a_good_update() -> None:
    assert defect(payload(), FORM, announced=5) == ""
    assert defect(payload(), FORM, announced=None) == ""


def test_no_rows_are_rows_too() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    assert refused(grad__classes=none, grad__bias=torch.zeros(0, 2)) == ""


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite(bad: float) -> None:
    w = torch.ones(2, 3)
    w[1, 2] = bad
    assert refused(model__w=w) == "sent NaN or infinity in model/w"
    assert not_finite(payload(model__w=w)) == "sent NaN or infinity in model/w"
    assert not_finite(payload()) == ""


def test_numbers_beyond_the_largest() -> None:
    assert refused(model__w=torch.full((2, 3), -LARGEST)) == ""
    found = refused(model__w=torch.full((2, 3), 1e30))
    assert found.startswith("sent model/w with numbers from 1e+30 to 1e+30, not -1.09951e+12")


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"model__w": torch.ones(2, 4)}, "sent model/w of shape (2, 4), not (2, 3)"),
        ({"model__w": torch.ones(3)}, "sent model/w of shape (3,), not (2, 3)"),
        (
            {"model__w": torch.ones(2, 3).double()},
            "sent model/w as float64 of shape (2, 3), not float32",
        ),
        ({"model__w": torch.ones(2, 3).to_sparse()}, "sent model/w as a sparse tensor"),
        ({"model__w": None}, "did not send 'model/w'"),
        ({"model__v": torch.ones(2, 3)}, "sent 'model/v', which is not declared"),
        ({"grad__bias": torch.zeros(1, 2)}, "sent grad/bias of shape (1, 2), not (2, 2)"),
        ({"grad__bias": torch.zeros(2, 3)}, "sent grad/bias of shape (2, 3), not (2, 2)"),
        ({"grad__classes": None}, "did not send 'grad/classes'"),
        (
            {"grad__classes": torch.tensor([1.0, 3.0])},
            "sent grad/classes as float32 of shape (2,), not a list of class numbers",
        ),
        (
            {"grad__classes": torch.tensor([1, 4])},
            "sent grad/classes that are not ascending class numbers below 4",
        ),
        (
            {"grad__classes": torch.tensor([-1, 3])},
            "sent grad/classes that are not ascending class numbers below 4",
        ),
        (
            {"grad__classes": torch.tensor([3, 3])},
            "sent grad/classes that are not ascending class numbers below 4",
        ),
        (
            {"counts__all": torch.tensor([-1, 2, 0, 3])},
            "sent counts/all with numbers from -1 to 3, not 0 to 5",
        ),
        # None is above 5, but together they are.
        (
            {"counts__all": torch.tensor([1, 2, 0, 3])},
            "sent counts/all with numbers from 0 to 3, not 0 to 5",
        ),
    ],
)
def test_tensors(tensors: dict[str, torch.Tensor | None], words: str) -> None:
    assert refused(**tensors) == words


@pytest.mark.parametrize(
    ("scalars", "words"),
    [
        ({"samples": 6}, "sent samples = 6, not from 0 to 5"),
        ({"samples": -1}, "sent samples = -1, not from 0 to 5"),
        ({"samples": 10**18}, "sent samples = 1000000000000000000, not from 0 to 5"),
        # 2^1328 < 10^400 < 2^1329. Python does not print numbers of more than 4,300 digits.
        ({"samples": 10**400}, "sent samples = a whole number of 1329 bits, not from 0 to 5"),
        ({"samples": True}, "sent samples = True, not a whole number"),
        ({"samples": 5.0}, "sent samples = 5.0, not a whole number"),
        ({"samples": "many"}, "sent samples = 'many', not a whole number"),
        ({"gap": "x" * 100}, f"sent gap = '{'x' * 36}..., not a number"),
        ({"gap": float("nan")}, "sent gap = nan"),
        ({"gap": -0.5}, "sent gap = -0.5, not from 0 to 1.09951e+12"),
        ({"gap": 1e13}, "sent gap = 10000000000000.0, not from 0 to 1.09951e+12"),
        ({"more": 1}, "sent 'more', which is not declared"),
    ],
)
def test_scalars(scalars: dict[str, Scalar], words: str) -> None:
    assert defect(payload(scalars), FORM, announced=5) == words


def test_a_missing_scalar() -> None:
    bare = payload()
    assert defect(Payload(bare.tensors, {"samples": 5}), FORM, 5) == "did not send 'gap'"


def test_a_whole_number_is_a_real_one_too() -> None:
    assert defect(payload({"gap": 1}), FORM, announced=5) == ""


def test_who_announced_nothing_is_bounded_all_the_same() -> None:
    assert "not from 0 to" in defect(payload({"samples": 10**18}), FORM, announced=None)


def test_looks_of_tensors() -> None:
    tensors = {"a": torch.zeros(2, 3), "n": torch.zeros((), dtype=torch.int64)}
    assert like(tensors.items()) == {"a": Like((2, 3)), "n": Like((), torch.int64)}


def test_an_empty_form() -> None:
    assert defect(Payload(), Form(), announced=0) == ""
    assert defect(Payload(scalars={"steps": 0}), Form().numbers(steps=COUNT), announced=0) == ""
