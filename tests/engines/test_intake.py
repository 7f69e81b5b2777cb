"""Answers that are added up together come to what they come to one by one."""

from __future__ import annotations

import pytest
import torch

from fedtail.engines import executor
from fedtail.engines.executor import Arrival, Done, Intake, Job
from fedtail.engines.runtime import Clock
from fedtail.forms import SAMPLES, First, Form, Like, Mean, Number, Total
from fedtail.protocol import Payload, Task, Update
from fedtail.totals import Sums

FORM = (
    Form()
    .group("model", {"w": Like((3, 2)), "b": Like((2,))})
    .group("model", {"steps": Like((), torch.int64)})
    .group("expert", {"v": Like((2,))}, Mean(within="expert"))
    .group("sum", {"n": Like((1,), torch.float64)}, Total())
    .group("first", {"s": Like((2,))}, First())
    .numbers(samples=SAMPLES, expert=Number(0, 1, whole=True), loss=Number())
)


def payload(k: int) -> Payload:
    draw = torch.Generator().manual_seed(k)
    return Payload(
        {
            "model/w": torch.randn(3, 2, generator=draw) * 10.0 ** (k - 3),
            "model/b": torch.randn(2, generator=draw),
            "model/steps": torch.tensor(k),
            "expert/v": torch.randn(2, generator=draw),
            "sum/n": torch.tensor([k / 3], dtype=torch.float64),
            "first/s": torch.full((2,), float(k)),
        },
        {"samples": k % 4, "expert": k % 2, "loss": k / 7},
    )


def answer(k: int, sent: Payload | None, form: Form = FORM) -> Arrival:
    job = Job(Task(k, "train", Payload()), {}, Clock(1, 1))
    return Arrival(job, Done(sent, {"kept": torch.tensor(k)}, "" if sent else "late"), form, 9)


def same(one: Sums, other: Sums) -> bool:
    assert one.piles.keys() == other.piles.keys() and one.scalars == other.scalars
    return all(
        pile.weight == other.piles[key].weight
        and pile.count == other.piles[key].count
        and all(map(torch.equal, pile.whole, other.piles[key].whole))
        for key, pile in one.piles.items()
    )


def alone(numbers: list[int]) -> Sums:
    total = Sums(FORM)
    for k in numbers:
        total.add(Update(k, payload(k)))
    return total


@pytest.mark.parametrize("most", [0, 100, 1 << 20])
def test_together_is_one_by_one(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(executor, "HELD_BYTES", most)
    intake, settled = Intake(Sums(FORM)), []
    for k in (5, 3, 6, 0, 1):
        settled += intake.put(answer(k, payload(k)))
    settled += intake.settle()
    assert same(intake.total, alone([0, 1, 3, 5, 6]))
    assert [client for client, _ in settled] == [5, 3, 6, 0, 1]
    assert all(done.added == payload(1).nbytes for _, done in settled)
    assert intake.settle() == []


def test_one_bad_answer_is_refused_and_the_others_count() -> None:
    bad = payload(3)
    bad.tensors["model/w"][0, 0] = torch.nan
    intake = Intake(Sums(FORM))
    sent = {1: payload(1), 2: None, 3: bad, 4: payload(4)}
    settled = [one for k, p in sent.items() for one in intake.put(answer(k, p))]
    settled += intake.settle()
    reasons = {client: done.reason for client, done in settled}
    assert reasons == {1: "", 2: "late", 3: "sent NaN or infinity in model/w", 4: ""}
    assert same(intake.total, alone([1, 4]))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model/w", torch.full((3, 2), 2.0**41)),
        ("model/w", torch.full((3, 2), -torch.inf)),
        ("model/w", torch.zeros(2, 3)),
        ("model/w", torch.zeros(3, 2).double()),
        ("model/w", torch.zeros(3, 2).to_sparse()),
        ("model/more", torch.zeros(1)),
    ],
)
def test_whatever_is_wrong_is_found(name: str, value: torch.Tensor) -> None:
    intake = Intake(Sums(FORM))
    sent = payload(2)
    intake.put(answer(2, Payload({**sent.tensors, name: value}, sent.scalars)))
    intake.put(answer(1, payload(1)))
    assert [bool(done.reason) for _, done in intake.settle()] == [True, False]
    assert same(intake.total, alone([1]))


def test_more_samples_than_announced_are_found() -> None:
    intake = Intake(Sums(FORM))
    sent = payload(2)
    intake.put(answer(2, Payload(sent.tensors, {**sent.scalars, "samples": 10})))
    intake.put(answer(1, payload(1)))
    assert [bool(done.reason) for _, done in intake.settle()] == [True, False]


def test_two_forms_are_added_up_apart() -> None:
    intake = Intake(Sums(FORM))
    other = FORM.numbers()
    for k, form in ((1, FORM), (2, other), (3, FORM), (4, other)):
        intake.put(answer(k, payload(k), form))
    assert len(intake.settle()) == 4
    assert same(intake.total, alone([1, 2, 3, 4]))
