from __future__ import annotations

import json

import pytest
import torch

from fedtail.privacy.additive import (
    GAIN,
    PART,
    WHOLE,
    NotASum,
    Total,
    addends,
    dense_rows,
    form_length,
)
from fedtail.protocol import Payload, Sum


def total(payloads: list[Payload], part: str = WHOLE, classes: int = 3) -> Total:
    parts = [addends(payload, {}, classes)[part] for payload in payloads]
    assert len({a.form for a in parts}) == 1
    numbers = torch.stack([a.numbers for a in parts]).sum(dim=0)
    assert len(numbers) == form_length(parts[0].form)
    return Total.of(parts[0].form, numbers, len(parts))


def model(value: float, samples: int, steps: int) -> Payload:
    return Payload(
        {"model/w": torch.tensor([value, 0.0]), "model/steps": torch.tensor(steps)},
        {"samples": samples, "loss": value / 2},
        summable=frozenset({"model"}),
    )


def test_a_mean_is_weighted_by_samples_and_everybody_gets_it() -> None:
    # (1·2 + 3·6) / 4 = 5; counters (1·4 + 3·7) / 4 = 6.25 → 6; numbers: plain means.
    found = total([model(2.0, 1, 4), model(6.0, 3, 7)])
    for first in (True, False):
        tensors = found.tensors(first)
        assert torch.equal(tensors["model/w"], torch.tensor([5.0, 0.0]))
        assert torch.equal(tensors["model/steps"], torch.tensor(6))
        assert tensors["model/steps"].dtype == torch.int64
    assert found.scalars == {"samples": 2.0, "loss": 2.0}


def test_no_samples_at_all_give_zero_and_not_nan() -> None:
    found = total([model(2.0, 0, 4), model(6.0, 0, 7)])
    assert torch.equal(found.tensors(True)["model/w"], torch.zeros(2))


def test_a_plain_sum_stands_in_the_first_update_only() -> None:
    payloads = [
        Payload(
            {"counts/classes": torch.tensor([k, 1])},
            {"samples": 5 * k},
            summable=frozenset({"counts"}),
            sums={"counts": Sum("sum")},
        )
        for k in (1, 2)
    ]
    found = total(payloads)
    each = [found.tensors(first)["counts/classes"] for first in (True, False)]
    assert torch.equal(each[0], torch.tensor([3, 2]))
    assert torch.equal(torch.stack(each).sum(dim=0), torch.tensor([3, 2]))
    assert each[0].dtype == torch.int64


def rows(classes: list[int], *values: list[float]) -> Payload:
    table = torch.tensor(values).reshape(len(classes), 2)
    return Payload(
        {"grad/classes": torch.tensor(classes, dtype=torch.int64), "grad/weight": table},
        {"samples": 100},
        summable=frozenset({"grad"}),
        sums={"grad": Sum("classes")},
    )


def test_rows_are_averaged_over_those_who_hold_the_class() -> None:
    # Class 0: ([1, 2] + [3, 6]) / 2 = [2, 4]; class 2: one holder; class 1: nobody.
    found = total([rows([0, 2], [1.0, 2.0], [5.0, 7.0]), rows([0], [3.0, 6.0]), rows([])])
    tensors = found.tensors(first=False)
    assert torch.equal(tensors["grad/classes"], torch.tensor([0, 2]))
    assert torch.equal(tensors["grad/weight"], torch.tensor([[2.0, 4.0], [5.0, 7.0]]))


def test_which_classes_a_client_holds_is_not_in_the_form() -> None:
    forms = {addends(p, {}, 3)[WHOLE].form for p in (rows([0], [1.0, 2.0]), rows([]))}
    assert len(forms) == 1


def test_rows_of_all_classes() -> None:
    dense = dense_rows(rows([2, 0], [1.0, 2.0], [3.0, 4.0]).group("grad"), 3)
    assert torch.equal(dense["weight"], torch.tensor([[3.0, 4.0], [0.0, 0.0], [1.0, 2.0]]))
    assert torch.equal(dense["classes"], torch.tensor([1, 0, 1]))


def test_gradients_travel_larger_than_they_are() -> None:
    addend = addends(rows([1], [1.0, 0.5]), {}, 3)[WHOLE]
    # Weight 100, scalar samples 100, indicator (0, 1, 0), rows of classes 0, 1, 2.
    expected = [100, 100, 0, 1, 0, 0, 0, GAIN, GAIN / 2, 0, 0]
    assert addend.numbers.tolist() == expected


def test_parts_are_kept_apart_and_have_their_own_weight() -> None:
    def expert(number: int, value: float, samples: int) -> Payload:
        return Payload(
            {"model/w": torch.tensor([value]), "expert/w": torch.tensor([value])},
            {"samples": samples, "expert": number},
            summable=frozenset({"model", "expert"}),
            sums={"expert": Sum(within="expert")},
        )

    payload = expert(1, 4.0, 3)
    parts = addends(payload, {"expert": 1}, 3)
    assert {name: a.within for name, a in parts.items()} == {WHOLE: "", PART: "expert=1"}
    assert parts[PART].numbers.tolist() == [3.0, 12.0]
    # The number of the expert is what the server said: it is not counted as the client's own.
    assert json.loads(parts[WHOLE].form)["scalars"] == ["samples"]
    found = total([payload, expert(1, 8.0, 1)], PART)
    assert torch.equal(found.tensors(True)["expert/w"], torch.tensor([5.0]))  # (12 + 8) / 4


def test_what_is_not_declared_does_not_leave() -> None:
    with pytest.raises(NotASum, match="'grad', which is not declared"):
        addends(Payload({"grad/w": torch.ones(1)}), {}, 3)
    with pytest.raises(NotASum, match="text 'kind'"):
        addends(Payload({}, {"kind": "secret"}), {"kind": "other"}, 3)
    addends(Payload({}, {"kind": "known"}), {"kind": "known"}, 3)
    addends(Payload({"lpi/w": torch.ones(1)}, released=frozenset({"lpi"})), {}, 3)
