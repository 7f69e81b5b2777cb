"""Updates added up as their form says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from fedtail.engines.wire import pack, unpack
from fedtail.errors import FedtailError
from fedtail.forms import SAMPLES, SMALL_TENSOR, ByClass, First, Form, Like, Mean, Number, Total
from fedtail.protocol import Payload, Scalar, Task, Update
from fedtail.reduce import (
    ExchangePlan,
    Reduced,
    frames_for,
    received,
    reduced,
    within_frames,
)
from fedtail.totals import Sums


def update(client: int, scalars: dict[str, Scalar] | None = None, **tensors: list[float]) -> Update:
    named = {name.replace("__", "/"): torch.tensor(t) for name, t in tensors.items()}
    return Update(client, Payload(named, {"samples": 1, **(scalars or {})}))


W = {"w": Like((2,))}


def test_a_mean_by_samples() -> None:
    # (1 · 4 + 3 · 8) / 4 and (1 · 0 + 3 · 2) / 4
    form = Form().group("model", W).numbers(samples=SAMPLES)
    found = reduced(
        [
            update(0, {"samples": 1}, model__w=[4.0, 0.0]),
            update(1, {"samples": 3}, model__w=[8.0, 2.0]),
        ],
        form,
    )
    assert found["model"]["w"].tolist() == [7.0, 1.5]
    assert found["model"]["w"].dtype == torch.float32
    assert found.clients == (0, 1)
    assert found.total("samples") == 4
    assert found.mean("samples") == 2
    assert found.each == ()


def test_nobody_weighs_anything() -> None:
    form = Form().group("model", W)
    assert reduced([update(0, {"samples": 0}, model__w=[4.0, 0.0])], form)["model"] == {}
    assert reduced([], form)["model"] == {}


def test_all_who_have_samples_weigh_the_same() -> None:
    form = Form().group("model", W, Mean(by=""))
    updates = [
        update(0, {"samples": 1}, model__w=[4.0, 0.0]),
        update(1, {"samples": 99}, model__w=[8.0, 2.0]),
        update(2, {"samples": 0}, model__w=[1e6, 1e6]),
    ]
    assert reduced(updates, form)["model"]["w"].tolist() == [6.0, 1.0]


def test_a_mean_by_another_scalar() -> None:
    form = Form().group("model", W, Mean(by="share"))
    updates = [
        update(0, {"share": 0.5}, model__w=[4.0, 0.0]),
        update(1, {"share": 1.5}, model__w=[8.0, 4.0]),
    ]
    assert reduced(updates, form)["model"]["w"].tolist() == [7.0, 3.0]


def test_parts() -> None:
    form = Form().group("own", W, Mean(within="cluster"))
    updates = [
        update(0, {"cluster": 0}, own__w=[4.0, 0.0]),
        update(1, {"cluster": 1}, own__w=[8.0, 2.0]),
        update(2, {"cluster": 1, "samples": 3}, own__w=[0.0, 2.0]),
    ]
    found = reduced(updates, form)
    assert found["own", 0]["w"].tolist() == [4.0, 0.0]
    assert found["own", 1]["w"].tolist() == [2.0, 2.0]
    assert found["own", 2] == {}
    assert [found.count("own", i) for i in range(3)] == [1, 2, 0]


def test_rows_by_class_are_means_over_their_senders() -> None:
    # Class 0: clients 0 and 1, (2 + 4) / 2, whatever their samples; class 2: client 1 alone.
    form = Form().group("grad", {"bias": Like((2,))}, ByClass(3))
    one = Payload({"grad/classes": torch.tensor([0]), "grad/bias": torch.tensor([[2.0, 1.0]])})
    two = Payload(
        {"grad/classes": torch.tensor([0, 2]), "grad/bias": torch.tensor([[4.0, 1.0], [5.0, 6.0]])}
    )
    table = reduced([Update(0, one), Update(1, two)], form)["grad"]
    assert table["classes"].tolist() == [0, 2]
    assert table["bias"].tolist() == [[3.0, 1.0], [5.0, 6.0]]
    none = Payload(
        {"grad/classes": torch.zeros(0, dtype=torch.int64), "grad/bias": torch.zeros(0, 2)}
    )
    empty = reduced([Update(0, none)], form)["grad"]
    assert (len(empty["classes"]), tuple(empty["bias"].shape)) == (0, (0, 2))


def test_small_gradients_keep_their_direction() -> None:
    # The grain of a sum is absolute, a cosine is not: 1e-9 must be as good as 1.
    form = Form().group("grad", {"w": Like((50,))}, ByClass(1))
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(1, 50, generator=generator) for _ in range(3)]

    def mean(scale: float) -> torch.Tensor:
        sent = [{"grad/classes": torch.tensor([0]), "grad/w": row * scale} for row in rows]
        return reduced([Update(k, Payload(t)) for k, t in enumerate(sent)], form)["grad"]["w"]

    small, large = mean(1e-9), mean(1.0)
    # Scaling rounds each float32 once: 6e-8.
    torch.testing.assert_close(small * 1e9, large, rtol=1e-6, atol=1e-7)


def test_totals_whole_numbers_and_the_first() -> None:
    counts = {"all": Like((2,), torch.int64)}
    form = (
        Form()
        .group("counts", counts, Total())
        .group("model", {"steps": Like((), torch.int64)})
        .group("model", {"mean": Like((1,))}, First())
    )
    sent = {
        k: Payload(
            {
                "counts/all": torch.tensor([k, 2]),
                "model/steps": torch.tensor(10 * k),
                "model/mean": torch.tensor([float(k)]),
            },
            {"samples": 1},
        )
        for k in (3, 1, 2)
    }
    found = reduced([Update(k, payload) for k, payload in sent.items()], form)
    assert found["counts"]["all"].tolist() == [6, 6]
    assert int(found["model"]["steps"]) == 30
    assert found["model"]["mean"].tolist() == [1.0]


def test_who_needs_single_updates_says_why() -> None:
    form = Form().group("model", W).singly("it looks at each")
    updates = [update(1, model__w=[1.0, 1.0]), update(0, {"samples": 3}, model__w=[5.0, 5.0])]
    found = reduced(updates, form)
    assert [u.client for u in found.each] == [0, 1]
    assert found["model"]["w"].tolist() == [4.0, 4.0]
    assert found.weighed([0.0, 2.0])["model"]["w"].tolist() == [1.0, 1.0]


class Asked:
    """What a plan is made from."""

    def form(self, task: Task) -> Form:
        return (
            Form()
            .group("model", {"w": Like((SMALL_TENSOR,)), "b": Like((1,))})
            .numbers(samples=SAMPLES)
        )

    def announced(self, client: int) -> int:
        return 100


def test_large_tensors_are_bounded_by_what_was_sent() -> None:
    # 2^16 times the largest number sent, but at least 2^16; small tensors are not.
    sent = Payload({"model/w": torch.full((SMALL_TENSOR,), 3.0), "model/b": torch.zeros(1)})
    plan = ExchangePlan.of([Task(0, "train", sent), Task(1, "train", sent)], Asked())
    assert list(plan.frames.named) == ["model/w"]
    assert plan.of_task(Task(0, "train", sent)).tensors["model/w"].high == 2.0**18
    assert plan.of_task(Task(0, "train", sent)).tensors["model/b"].high == 2.0**40
    updates = [
        Update(
            k,
            Payload(
                {"model/w": torch.full((SMALL_TENSOR,), float(k)), "model/b": torch.ones(1)},
                {"samples": 100},
            ),
        )
        for k in (0, 1)
    ]
    sums = Sums(plan.form, plan.frames)
    for one in updates:
        sums.add(one)
    assert torch.equal(Reduced((0, 1), sums)["model"]["w"], torch.full((SMALL_TENSOR,), 0.5))


@pytest.mark.parametrize("how", [Total(), First()])
def test_only_means_of_what_was_sent_are_narrow(how: Total | First) -> None:
    form = Form().group("model", {"w": Like((SMALL_TENSOR,))}, how)
    tasks = [Task(0, "train", Payload({"model/w": torch.ones(SMALL_TENSOR)}))]
    frames = frames_for(form, tasks, 1)
    assert frames.named == {}
    assert within_frames(form, frames) == form


def test_weights_of_its_own_are_bounded_too() -> None:
    # 2^12 times the most samples: what is larger could overflow a sum.
    form = Form().group("model", W, Mean(by="share")).numbers(share=Number(low=0), loss=Number())
    frames = frames_for(form, [Task(0, "train", Payload())], 100)
    assert frames.weight == 100 * 2.0**12
    bounded = within_frames(form, frames)
    assert bounded.scalars["share"].high == frames.weight
    assert bounded.scalars["loss"] == form.scalars["loss"]


EVERY = (
    Form()
    .group("model", {"w": Like((2,)), "steps": Like((), torch.int64)})
    .group("own", W, Mean(within="cluster"))
    .group("grad", {"bias": Like((2,))}, ByClass(3))
    .group("moments", {"n": Like((), torch.int64), "sum": Like((2,))}, ByClass(3, mean=False))
    .group("stats", {"mean": Like((1,))}, First())
    .group("counts", {"all": Like((2,), torch.int64, low=0, counted=True)}, Total())
    .numbers(samples=SAMPLES, cluster=Number(0, 1, whole=True), loss=Number())
)


def of_every_kind(client: int) -> Update:
    g = torch.Generator().manual_seed(client)
    classes = torch.tensor([client % 3] if client else [], dtype=torch.int64)
    rows = torch.randn(len(classes), 2, generator=g)
    tensors = {
        "model/w": torch.randn(2, generator=g),
        "model/steps": torch.tensor(client),
        "own/w": torch.randn(2, generator=g),
        "grad/classes": classes,
        "grad/bias": rows,
        "moments/classes": classes,
        "moments/n": torch.full((len(classes),), 2),
        "moments/sum": rows,
        "stats/mean": torch.tensor([float(client)]),
        "counts/all": torch.tensor([client, 1]),
    }
    loss = float(torch.randn(1, generator=g))
    return Update(
        client, Payload(tensors, {"samples": client + 1, "cluster": client % 2, "loss": loss})
    )


def contents(sums: Sums) -> dict[str, Any]:
    values = {str(key): sums.value(key) for key in sums.seen()}
    found = {k: None if t is None else t.tolist() for k, t in sorted(values.items())}
    counts = {str(key): sums.count(key) for key in sorted(sums.seen(), key=str)}
    return {"values": found, "counts": counts, "scalars": dict(sorted(sums.scalars.items()))}


@pytest.mark.parametrize("parts", [[[0, 1, 2, 3, 4]], [[3, 1], [4], [0, 2]], [[4, 3, 2, 1, 0], []]])
def test_sums_of_sums_are_the_sum_to_the_last_bit(parts: list[list[int]]) -> None:
    whole, merged = Sums(EVERY), Sums(EVERY)
    for client in range(5):
        whole.add(of_every_kind(client))
    for part in parts:
        some = Sums(EVERY)
        for client in part:
            some.add(of_every_kind(client))
        # As a message: JSON, and integers by number.
        sent = unpack(pack(some.payload()))
        if part:
            announced = sum(client + 1 for client in part)
            merged.merge(received(sent, EVERY, merged.frames, len(part), announced))
    assert contents(merged) == contents(whole)
    found = Reduced(tuple(range(5)), merged)
    assert found["stats"]["mean"].tolist() == [0.0]
    assert found["moments"]["n"].tolist() == [2, 4, 2]  # classes 0, 1 and 2: clients 3; 1, 4; 2


def test_a_sum_that_breaks_off_goes_on_where_it_was() -> None:
    some, whole = Sums(EVERY), Sums(EVERY)
    for client in range(3):
        some.add(of_every_kind(client))
    whole.merge(some)
    pieces = [t for _, _, t, _ in some.parts()]

    def broken(after: int) -> Iterator[torch.Tensor]:
        yield from pieces[:after]
        raise EOFError

    total = Sums(EVERY)
    came = total.take(some.header(), broken(3))
    assert came == 3
    assert total.take(some.header(), broken(1), came) == 3
    assert total.take(some.header(), iter(pieces), came) == len(pieces)
    assert contents(total) == contents(whole)


Change = Callable[[dict[str, Any], dict[str, torch.Tensor]], None]


def rewrite(name: str, place: int, value: Any) -> Change:
    def change(head: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        for pile in head["piles"]:
            if pile[0] == name:
                pile[place] = value

    return change


def scalar(name: str, value: str) -> Change:
    return lambda head, tensors: head["scalars"].__setitem__(name, value)


def tensor(number: str, value: torch.Tensor) -> Change:
    return lambda head, tensors: tensors.__setitem__(number, value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (scalar("samples", "1000"), "with samples = 1000"),
        (scalar("samples", "many"), "cannot be read"),
        (scalar("loss", str(2**50)), "with loss = 1.1259e+15"),
        (rewrite("model/w", 0, "model/v"), "cannot be read"),
        (rewrite("model/w", 2, "1000"), "of model/w with a weight of 1000"),
        (rewrite("model/w", 2, "-1"), "of model/w with a weight of -1"),
        (rewrite("model/w", 3, 9), "of model/w with a weight"),
        (rewrite("grad/bias", 1, 7), "of grad/bias for class 7"),
        (tensor("0", torch.zeros(3, dtype=torch.int64)), "of model/w in another form"),
        (tensor("0", torch.full((2,), 2**62)), "of model/w with numbers above"),
        (tensor("0", torch.zeros(2)), "of model/w in another form"),
        (lambda head, tensors: head["piles"].pop(), "cannot be read"),
        (lambda head, tensors: head.pop("scalars"), "cannot be read"),
    ],
)
def test_a_node_cannot_send_more_than_its_clients_could(change: Change, reason: str) -> None:
    some = Sums(EVERY)
    for client in (1, 2):
        some.add(of_every_kind(client))
    sent = some.payload()
    assert received(sent, EVERY, some.frames, 2, 5)
    head, tensors = json.loads(str(sent.scalars["sums"])), dict(sent.tensors)
    change(head, tensors)
    with pytest.raises(FedtailError, match=re.escape(reason)):
        received(Payload(tensors, {"sums": json.dumps(head)}), EVERY, some.frames, 2, 5)


def test_counts_of_a_node_are_not_more_than_its_samples() -> None:
    some = Sums(EVERY)
    some.add(of_every_kind(4))
    with pytest.raises(FedtailError, match="samples = 5"):
        received(some.payload(), EVERY, some.frames, 1, 4)
