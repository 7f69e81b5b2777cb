"""Updates as vectors that are added up, and their sums taken apart again."""

from __future__ import annotations

import pytest
import torch

from fedtail.forms import COUNT, SAMPLES, ByClass, First, Form, Like, Mean, Number, Total
from fedtail.privacy.layout import Opened, length, part_of, slots, vector, why_no_sum
from fedtail.protocol import Payload, Update
from fedtail.reduce import Reduced, reduced
from fedtail.totals import Part

MODEL = (
    Form()
    .group("model", {"w": Like((2,)), "steps": Like((), torch.int64)})
    .numbers(samples=SAMPLES, loss=Number())
)


def opened(payloads: list[Payload], form: Form, part: Part = None) -> Reduced:
    vectors = [vector(payload, form, part is not None) for payload in payloads]
    assert {len(v) for v in vectors} == {length(form, part is not None)}
    found = Opened(form)
    found.read(torch.stack(vectors).sum(dim=0), part, len(payloads))
    return Reduced(tuple(range(len(payloads))), found)


def model(value: float, samples: int, steps: int) -> Payload:
    tensors = {"model/w": torch.tensor([value, 0.0]), "model/steps": torch.tensor(steps)}
    return Payload(tensors, {"samples": samples, "loss": value / 2})


def test_a_mean_is_weighted_by_samples() -> None:
    # (1·2 + 3·6) / 4 = 5; counters (1·4 + 3·7) / 4 = 6.25 → 6; scalars are added up.
    found = opened([model(2.0, 1, 4), model(6.0, 3, 7)], MODEL)
    assert found["model"]["w"].tolist() == [5.0, 0.0]
    assert found["model"]["w"].dtype == torch.float32
    assert int(found["model"]["steps"]) == 6
    assert found["model"]["steps"].dtype == torch.int64
    assert (found.total("samples"), found.mean("loss")) == (4.0, 2.0)


def test_no_samples_at_all_give_nothing_and_not_nan() -> None:
    assert opened([model(2.0, 0, 4), model(6.0, 0, 7)], MODEL)["model"] == {}


def test_all_who_have_samples_weigh_the_same() -> None:
    form = Form().group("model", {"w": Like((1,))}, Mean(by="")).numbers(samples=SAMPLES)
    sent = [
        Payload({"model/w": torch.tensor([t])}, {"samples": n}) for t, n in ((2.0, 9), (4.0, 1))
    ]
    none = Payload({"model/w": torch.tensor([1e6])}, {"samples": 0})
    assert opened([*sent, none], form)["model"]["w"].tolist() == [3.0]


def test_a_plain_sum() -> None:
    form = Form().group("counts", {"classes": Like((2,), torch.int64)}, Total())
    sent = [Payload({"counts/classes": torch.tensor([k, 1])}) for k in (1, 2)]
    found = opened(sent, form)["counts"]["classes"]
    assert found.tolist() == [3, 2]
    assert found.dtype == torch.int64


ROWS = Form().group("grad", {"weight": Like((2,))}, ByClass(3)).numbers(samples=SAMPLES)


def rows(classes: list[int], *values: list[float]) -> Payload:
    table = torch.tensor(values).reshape(len(classes), 2)
    index = torch.tensor(classes, dtype=torch.int64)
    return Payload({"grad/classes": index, "grad/weight": table}, {"samples": 100})


def test_rows_are_averaged_over_those_who_hold_the_class() -> None:
    # Class 0: ([1, 2] + [3, 6]) / 2 = [2, 4]; class 2: one holder; class 1: nobody.
    sent = [rows([0, 2], [1.0, 2.0], [5.0, 7.0]), rows([0], [3.0, 6.0]), rows([])]
    table = opened(sent, ROWS)["grad"]
    assert table["classes"].tolist() == [0, 2]
    assert table["weight"].tolist() == [[2.0, 4.0], [5.0, 7.0]]
    sums = Form().group("grad", {"weight": Like((2,))}, ByClass(3, mean=False))
    assert opened(sent, sums)["grad"]["weight"].tolist() == [[4.0, 8.0], [5.0, 7.0]]


def test_which_classes_a_client_holds_changes_no_length() -> None:
    vectors = [vector(p, ROWS, False) for p in (rows([0], [1.0, 2.0]), rows([]))]
    assert [len(v) for v in vectors] == [length(ROWS, False)] * 2


def test_what_stands_where() -> None:
    # Samples, holders (0, 1, 0), rows of classes 0, 1, 2.
    expected = [100, 0, 1, 0, 0, 0, 1.0, 0.5, 0, 0]
    assert vector(rows([1], [1.0, 0.5]), ROWS, False).tolist() == expected
    found = [(slot.kind, slot.whole) for slot in slots(ROWS, False)]
    assert found == [("scalar", True), ("holders", True), ("tensor", False)]


PARTS = (
    Form()
    .group("model", {"w": Like((1,))})
    .group("expert", {"w": Like((1,))}, Mean(within="expert"))
    .numbers(samples=SAMPLES, expert=Number(1, 1, whole=True))
)


def expert(value: float, samples: int) -> Payload:
    tensors = {"model/w": torch.tensor([value]), "expert/w": torch.tensor([value])}
    return Payload(tensors, {"samples": samples, "expert": 1})


def test_parts_are_kept_apart_and_have_their_own_weight() -> None:
    assert part_of(PARTS) == 1 and part_of(MODEL) is None
    assert vector(expert(4.0, 3), PARTS, True).tolist() == [3.0, 12.0]
    # The number of the expert is what the server said: it is not counted as the client's own.
    assert [s.name for s in slots(PARTS, False) if s.kind == "scalar"] == ["samples"]
    found = opened([expert(4.0, 3), expert(8.0, 1)], PARTS, 1)
    assert found["expert", 1]["w"].tolist() == [5.0]  # (12 + 8) / 4
    assert (found.count("expert", 1), found.count("expert", 0)) == (2, 0)


@pytest.mark.parametrize(
    ("form", "sent"),
    [
        (MODEL, [model(2.5, 1, 3), model(-6.0, 30, 3), model(0.125, 7, 3)]),
        (ROWS, [rows([0, 2], [1.0, 2.0], [5.0, 7.0]), rows([0], [3.0, 6.0])]),
    ],
    ids=["mean", "rows"],
)
def test_it_is_what_sums_in_the_clear_give(form: Form, sent: list[Payload]) -> None:
    clear = reduced([Update(k, p) for k, p in enumerate(sent)], form)
    for group in {name.partition("/")[0] for name in form.tensors}:
        found = opened(sent, form)[group]
        for name, t in clear[group].items():
            torch.testing.assert_close(found[name], t)  # both round a float64 once


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (MODEL, ""),
        (PARTS, ""),
        (ROWS.numbers(steps=COUNT), ""),
        (MODEL.singly("it looks at each"), "it looks at each"),
        (MODEL.singly("it looks at each", noisy=True), ""),
        (Form().group("model", {"w": Like((1,))}, First()), "statistics of one client"),
        (PARTS.numbers(expert=Number(0, 2, whole=True)), "which 'expert' each client chose"),
    ],
)
def test_why_updates_cannot_be_summed(form: Form, reason: str) -> None:
    assert reason in why_no_sum(form) and bool(reason) == bool(why_no_sum(form))
