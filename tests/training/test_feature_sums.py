"""Sums of features: what a client sends, what they add up to, and sketches of second moments."""

from __future__ import annotations

import tiny
import torch
from closing import answered, asked, identity, question
from torch import Tensor

from fedtail import ClosedForm
from fedtail.forms import defect
from fedtail.protocol import Payload
from fedtail.training.feature_sums import (
    FeatureSums,
    Wanted,
    aimed_at,
    ask_feature_sums,
    block_bytes,
    from_sketch,
    sample_weights,
    whole,
)

# Two classes of three, two clients and one without samples.
X = [[1.0, 0.0], [3.0, 2.0], [0.0, 2.0], [0.0, 4.0]]
Y = [0, 0, 1, 1]
DATA = tiny.federation(X, Y, [[0, 1, 2], [3], []], classes=3)


def test_what_a_client_sends_is_its_part_of_means() -> None:
    # n = (2, 2, 0), N = 4. Client 0 holds (1, 0) and (3, 2) of class 0 and (0, 2) of class 1. That
    # is (4, 2) / 2 and (0, 2) / 2 of the class means, and (1 + 9, 4 + 4) / 4 of the squares.
    model = identity(2, 3)
    task = question(model, [2, 2, 0], products=True, balanced=True)
    sent = ClosedForm().feature_sums(task, tiny.client(DATA, 0, model)).group("features")
    assert sent["counts"].tolist() == [2, 1, 0]
    assert sent["sums"].tolist() == [[2.0, 1.0], [0.0, 1.0], [0.0, 0.0]]
    # With weights 1 / (L n_c) = 1/4 the products (1 + 9, 6, 4 + 4) weigh as much.
    assert sent["squares"].tolist() == [[2.5, 2.0], [2.5, 2.0]]
    assert sent["products"].tolist() == [2.5, 1.5, 2.0]


def test_weights_of_samples() -> None:
    counts = torch.tensor([6, 2, 0])
    inside, across = sample_weights(counts, balanced=True)
    assert inside.tolist() == [1 / 6, 1 / 2, 0.0]
    assert across.tolist() == [1 / 12, 1 / 4, 0.0]  # a class of two that somebody holds: 1/2 each
    assert sample_weights(counts, balanced=False)[1].tolist() == [1 / 8, 1 / 8, 0.0]


def test_sums_are_those_of_all_samples() -> None:
    sums = asked(identity(2, 3), DATA, Wanted(balanced=False))
    x = torch.tensor(X).double()
    assert sums.clients == 3
    assert sums.counts.tolist() == [2, 2, 0]
    assert sums.sums.tolist() == [[4.0, 2.0], [0.0, 6.0], [0.0, 0.0]]
    assert sums.squares.tolist() == [10.0, 24.0]
    assert sums.image is not None
    assert torch.allclose(sums.image, x.T @ x / 4, rtol=0, atol=1e-15)
    assert torch.allclose(sums.energies, x.square().sum(0) / 4, rtol=0, atol=1e-15)


def test_without_products_there_are_none() -> None:
    sums = asked(identity(2, 3), DATA, Wanted(products=False))
    assert sums.image is None
    assert sums.counts.tolist() == [2, 2, 0]


def test_a_triangle_is_a_symmetric_matrix() -> None:
    found = whole(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))
    assert found.tolist() == [[1.0, 2.0, 3.0], [2.0, 4.0, 5.0], [3.0, 5.0, 6.0]]


def test_a_sketch_of_two_columns_gives_back_two_directions() -> None:
    # A = 2 e eᵀ + f fᵀ has rank 2: with any two columns that see both, it is itself again.
    e, f = torch.eye(4).double()[0], torch.tensor([0.0, 0.6, 0.8, 0.0]).double()
    a = 2 * torch.outer(e, e) + torch.outer(f, f)
    test = torch.tensor([[1.0, 1.0], [1.0, -1.0], [1.0, 0.0], [0.0, 1.0]]).double()
    assert torch.allclose(from_sketch(a @ test, test), a, rtol=0, atol=1e-14)
    # One column: Ω = e + f sees (A Ω)(A Ω)ᵀ / (Ωᵀ A Ω) = (2 e + f)(2 e + f)ᵀ / 3.
    one = (e + f)[:, None]
    seen = 2 * e + f
    assert torch.allclose(from_sketch(a @ one, one), torch.outer(seen, seen) / 3, atol=1e-14)
    assert not from_sketch(0 * a @ test, test).any()


def test_clients_send_a_sketch_of_any_width() -> None:
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    data = tiny.federation(x.tolist(), [0, 0, 1, 1, 1], [[0, 1, 2], [3, 4]], classes=2)
    exact = asked(identity(6, 2), data, Wanted())
    sums = asked(identity(6, 2), data, Wanted(rank=5))
    assert sums.image is not None and sums.test is not None and exact.image is not None
    assert sums.image.shape == (6, 5)
    # Five samples have rank 5.
    assert torch.allclose(from_sketch(sums.image, sums.test), exact.image, rtol=0, atol=1e-9)
    # From the width on, the triangle is less.
    assert asked(identity(6, 2), data, Wanted(rank=6)).test is None


def test_an_aimed_block_is_answered_in_single_precision() -> None:
    # Client 0 holds (1, 0) and (3, 2) of class 0 and (0, 2) of class 1: Σ h hᵀ / 4 is
    # (10, 6; 6, 8) / 4, times Ω = (1, 1)ᵀ / 2 that is (2, 1.75).
    model, block = identity(2, 3), torch.tensor([[0.5], [0.5]])
    task = aimed_at(question(model, [2, 2, 0], products=False), block)
    sent = ClosedForm().feature_products(task, tiny.client(DATA, 0, model))
    found = sent.tensors["features/products"]
    assert found.dtype == torch.float32
    assert found.tolist() == [[2.0], [1.75]]
    assert defect(sent, ClosedForm().feature_products_form(task, model, 3), 3) == ""


def test_an_aimed_sketch_is_asked_for_where_it_is_less_than_the_triangle() -> None:
    # 40 features: 8·40·41/2 = 6,560 bytes. A block of 4 classes is 2·4·40·4 and 4 counts: 1,312.
    assert block_bytes(0, 40, 4) == 1312
    assert Wanted(blocks=4).aims(0, 40, 4)  # 5,248
    assert not Wanted(blocks=5).aims(0, 40, 4)  # 6,560
    assert Wanted(blocks=4).aims(300, 40, 4)  # with a body of 300 bytes 6,448
    assert not Wanted(blocks=4).aims(328, 40, 4)  # with one of 328 as many
    assert not Wanted(blocks=0).aims(0, 40, 4)
    assert not Wanted(products=False, blocks=1).aims(0, 40, 4)


def held(blocks: int, lost: int | None = None) -> tuple[FeatureSums, list[str]]:
    """Ask two clients with 40 features; client 1 may be lost from an exchange on."""
    x = torch.randn(12, 40, generator=torch.Generator().manual_seed(0))
    data = tiny.federation(x.tolist(), [0, 1] * 6, [range(6), range(6, 12)], classes=2)
    model, actions = identity(40, 2), []

    def aim(sums: FeatureSums) -> Tensor:
        known = 0 if sums.test is None else sums.test.shape[1]
        return torch.eye(40).double()[:, known : known + 2]

    server = tiny.server(model, 2, num_classes=2)
    exchange = ask_feature_sums(model.tensors(), model, server, Wanted(blocks=blocks), aim)
    tasks = next(exchange)
    while True:
        actions.append(tasks[0].action)
        block = tasks[0].payload.tensors.get("weigh/test")
        assert block is None or block.dtype == torch.float32
        few = tasks[:1] if lost is not None and len(actions) > lost else tasks
        try:
            tasks = exchange.send(answered(few, data, model))
        except StopIteration as stop:
            sums: FeatureSums = stop.value
            return sums, actions


def test_blocks_are_asked_for_one_after_the_other() -> None:
    sums, actions = held(3)
    assert actions == ["class_totals", "feature_sums", *["feature_products"] * 3]
    assert sums.test is not None and torch.equal(sums.test, torch.eye(40)[:, :6].double())
    x = torch.randn(12, 40, generator=torch.Generator().manual_seed(0)).double()
    assert sums.image is not None
    assert torch.allclose(sums.image, (x.T @ x / 12)[:, :6], rtol=0, atol=1e-6)


def test_nothing_is_aimed_at_where_nobody_has_samples() -> None:
    def aim(sums: FeatureSums) -> Tensor:
        raise AssertionError("there is no class")

    data = tiny.federation([[0.0] * 40], [0], [[], []], classes=2)
    sums = asked(identity(40, 2), data, Wanted(blocks=3), aim)
    assert sums.image is None
    assert not sums.held.any()


def test_a_class_that_nobody_holds_does_not_end_the_blocks() -> None:
    x = torch.randn(6, 40, generator=torch.Generator().manual_seed(0))
    data = tiny.federation(x.tolist(), [0, 1] * 3, [range(6)], classes=4)
    sums = asked(identity(40, 4), data, Wanted(blocks=1), lambda _: torch.eye(40)[:, :2])
    assert sums.image is not None and sums.image.shape == (40, 2)


def test_a_client_that_is_lost_ends_the_blocks() -> None:
    sums, actions = held(3, lost=3)
    assert actions.count("feature_products") == 2
    assert sums.image is not None and sums.image.shape == (40, 2)
    sums, _ = held(3, lost=2)
    assert sums.image is None


def test_an_answer_of_another_form_is_refused() -> None:
    model = identity(2, 3)
    task = question(model, [2, 2, 0], products=True)
    form = ClosedForm().feature_sums_form(task, model, 3)
    sent = ClosedForm().feature_sums(task, tiny.client(DATA, 0, model))
    assert defect(sent, form, 3) == ""
    assert "counts" in defect(sent, form, 2)  # it announced two samples
    negative = {**sent.tensors, "features/squares": -sent.tensors["features/squares"]}
    assert "squares" in defect(Payload(negative), form, 3)
    without = question(model, [2, 2, 0], products=False)
    assert "products" in defect(sent, ClosedForm().feature_sums_form(without, model, 3), 3)
