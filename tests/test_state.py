"""Server states as plain data, and the digest of a model."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from fedtail.state import digest, flatten, restore


@dataclass(frozen=True)
class Rich:
    model: dict[str, Tensor]
    momentum: Tensor | None
    history: list[Tensor]
    nested: dict[str, Any]
    count: int
    rate: float
    name: str
    ready: bool


def test_a_state_survives_json_and_tensors() -> None:
    # Prepare
    state = Rich(
        model={"fc.weight": torch.tensor([[1.0, 2.0]]), "n": torch.tensor(3)},
        momentum=None,
        history=[torch.zeros(0, 2), torch.ones(1)],
        nested={"a": {"b": torch.tensor([True])}, "list": [1, None, "x"]},
        count=7,
        rate=0.1 + 0.2,
        name="é",
        ready=True,
    )

    # Execute
    tree, tensors = flatten(state)
    back = restore(Rich, json.loads(json.dumps(tree)), tensors)

    # Assert
    assert list(tensors) == ["model/fc.weight", "model/n", "history/0", "history/1", "nested/a/b"]
    assert torch.equal(back.model["fc.weight"], state.model["fc.weight"])
    assert back.model["n"].dtype == torch.int64
    assert back.momentum is None
    assert [t.shape for t in back.history] == [(0, 2), (1,)]
    assert bool(back.nested["a"]["b"])
    assert back.nested["list"] == [1, None, "x"]
    assert (back.count, back.rate, back.name, back.ready) == (7, 0.1 + 0.2, "é", True)


def test_what_a_state_cannot_hold_is_refused_with_its_place() -> None:
    state = Rich({}, None, [], {"deep": {"er": object()}}, 0, 0.0, "", True)
    with pytest.raises(TypeError, match=r"cannot hold object \(in nested/deep/er\)"):
        flatten(state)


def test_keys_that_json_would_turn_into_text_are_refused() -> None:
    # {1: ...} would come back from a checkpoint as {"1": ...}, and a method would not find it.
    state = Rich({}, None, [], {"dual": {1: 0.5}}, 0, 0.0, "", True)
    with pytest.raises(TypeError, match=r"keys .* text.*nested/dual"):
        flatten(state)


def some() -> dict[str, Tensor]:
    return {"a": torch.tensor([1.0, -0.0]), "b": torch.tensor([[1, 2]])}


def test_the_digest_never_changes() -> None:
    # sha256 of "a:torch.float32:(2,);" + bytes of 1.0 and -0.0 + "b:torch.int64:(1, 2);" + bytes
    # of 1 and 2, little endian.
    by_hand = (
        b"a:torch.float32:(2,);\x00\x00\x80\x3f\x00\x00\x00\x80"
        b"b:torch.int64:(1, 2);\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0"
    )
    assert digest(some()) == hashlib.sha256(by_hand).hexdigest()


def test_the_digest_does_not_depend_on_order_or_layout() -> None:
    swapped = dict(reversed(some().items()))
    assert digest(swapped) == digest(some())
    wide = torch.arange(6.0).reshape(2, 3)
    assert digest({"w": wide}) == digest({"w": wide.t().contiguous().t()})


@pytest.mark.parametrize(
    "change",
    [
        {"a": torch.tensor([1.0, 0.0])},  # the sign of zero is a bit, too
        {"a": torch.tensor([1.0, -0.0], dtype=torch.float64)},
        {"a": torch.tensor([[1.0, -0.0]])},
        {"c": torch.zeros(0)},
    ],
)
def test_the_digest_sees_every_difference(change: dict[str, Tensor]) -> None:
    assert digest({**some(), **change}) != digest(some())


def test_the_digest_of_scalars_empties_and_booleans() -> None:
    odd = {"s": torch.tensor(1.5), "e": torch.zeros(0, 3), "b": torch.tensor([True, False])}
    assert digest(odd) == digest({name: t.clone() for name, t in odd.items()})
    assert digest(odd) != digest({**odd, "b": torch.tensor([True, True])})
