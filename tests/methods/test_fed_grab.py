"""Fed-GraB: a controller for each class."""

from __future__ import annotations

import math
from typing import Any

import pytest
import tiny
import torch
from torch import nn

from fedtail import FedAvg, FedGraB, run
from fedtail.methods.fed_grab import (
    FedGraBState,
    GradientBalancer,
    kept_numbers,
    pull_of,
    rare_rows,
)
from fedtail.models import SplitModel
from fedtail.protocol import Payload, grouped
from fedtail.training import LocalTraining


def balancer(delta: list[float], **fields: Any) -> GradientBalancer:
    """Return controllers that have seen nothing but these differences."""
    zero = torch.zeros(len(delta))
    active = fields.pop("active", zero == 0)
    return GradientBalancer(torch.tensor(delta), zero, zero, zero, active=active)


class TestController:
    def test_the_gain_by_hand(self) -> None:
        # x = 2 ln 9: (10/9) / (1/9 + 1/9) = 5; x = -2 ln 9: (10/9) / (1/9 + 9) = 10/82.
        x = torch.tensor([0.0, 2 * math.log(9), -2 * math.log(9), 1e3, -1e3])
        torch.testing.assert_close(pull_of(x), torch.tensor([1.0, 5.0, 10 / 82, 10.0, 0.0]))

    def test_nothing_seen_weighs_nothing(self) -> None:
        pull, push = balancer([0.0, 0.0]).weights(10, 0.01, 0.1)
        assert torch.equal(pull, torch.ones(2))
        assert torch.equal(push, torch.ones(2))

    def test_who_was_pushed_down_is_pulled_up(self) -> None:
        pull, push = balancer([-0.1, 0.1]).weights(10, 0.01, 0.1)
        assert pull[0] > 1 > push[0]
        assert pull[1] < 1 < push[1]

    def test_two_steps_by_hand(self) -> None:
        # e = 2, then 1. Step 1: 3·(2 - 0) + 0.5·2 + 0.25·(2 - 0 + 0) = 7.5.
        # Step 2: 3·(1 - 2) + 0.5·1 + 0.25·(1 - 4 + 0) = -3.25, in all 4.25.
        one = balancer([-2.0])
        one.weights(3, 0.5, 0.25)
        assert float(one.out) == 7.5
        one.delta = torch.tensor([-1.0])
        pull, push = one.weights(3, 0.5, 0.25)
        assert float(one.out) == 4.25
        assert float(pull) == pytest.approx(float(pull_of(torch.tensor(4.25))))
        assert float(push) == pytest.approx(float(pull_of(torch.tensor(-4.25))))
        assert (float(one.last), float(one.before)) == (1.0, 2.0)

    def test_gradients_are_added_up_by_what_they_do(self) -> None:
        # Class 0: its own sample has 0.25 up, the other 0.5 down; class 1 0.125 and 0.5. What is
        # not controlled is added up, too.
        one = balancer([1.0, 0.0], active=torch.tensor([True, False]))
        own = torch.tensor([[True, False], [False, True]])
        one.note(torch.tensor([[-0.25, 0.5], [0.5, -0.125]]), own)
        assert one.delta.tolist() == [0.75, -0.375]

    def test_a_class_out_of_control_weighs_1(self) -> None:
        one = balancer([5.0, 5.0], active=torch.tensor([True, False]))
        pull, push = one.weights(10, 0.01, 0.1)
        assert float(pull[1]) == float(push[1]) == 1.0
        assert float(pull[0]) < 0.1

    def test_a_controller_that_is_switched_on_finds_the_whole_difference(self) -> None:
        # e = 2 all the time; out = 3·(2 - 0) + 0.5·2 + 0.25·2 = 7.5 at once.
        one = balancer([-2.0], active=torch.tensor([False]))
        for _ in range(3):
            one.weights(3, 0.5, 0.25)
        assert float(one.out) == 0.0
        one.active = torch.tensor([True])
        one.weights(3, 0.5, 0.25)
        assert float(one.out) == 7.5

    def test_the_difference_goes_to_zero_on_a_stream_that_stays_the_same(self) -> None:
        # A class with a fifth of the samples: up 0.1 a batch, down 0.4, before weights. Without the
        # controller the difference would be -0.3 more each time; 400 batches are -120.
        one, own = balancer([0.0]), torch.tensor([[True], [False]])
        for _ in range(400):
            pull, push = one.weights(2, 0.2, 0.1)
            one.note(torch.stack([pull * -0.1, push * 0.4]), own)
        assert abs(float(one.delta)) < 1e-3
        # There, pull · 0.1 = push · 0.4.
        assert float(pull / push) == pytest.approx(4.0, rel=1e-3)


def test_rows_grow_with_the_samples_of_their_class() -> None:
    # Separable classes with 40, 20, 10 and 5 samples, each on an axis of its own: what the direct
    # prior reads off the rows has the order of the counts.
    counts = [40, 20, 10, 5]
    y = torch.repeat_interleave(torch.arange(4), torch.tensor(counts))
    x, head = torch.eye(4)[y], nn.Linear(4, 4, bias=False)
    nn.init.zeros_(head.weight)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.5)
    for _ in range(20):
        optimizer.zero_grad()
        loss = FedGraB().loss
        value = loss(SplitModel(head).output(x), y, None)  # type: ignore[arg-type]
        torch.autograd.backward(value)
        optimizer.step()
    lengths = head.weight.detach().norm(dim=1)
    assert lengths.sort(descending=True).indices.tolist() == [0, 1, 2, 3]


def test_shorter_rows_than_the_mean_are_rare() -> None:
    # Lengths 5, 2, 1 and 4, of mean 3.
    rows = torch.tensor([[3.0, 4.0], [2.0, 0.0], [0.0, 1.0], [0.0, -4.0]])
    assert rare_rows(rows).tolist() == [False, True, True, False]


@pytest.mark.parametrize("model", [tiny.plain_model, tiny.dropout_model])
def test_without_controllers_it_is_fedavg_with_the_binary_loss(model: Any) -> None:
    local = tiny.quick(momentum=0.9)
    off = run(tiny.experiment(FedGraB(local=local, control="none"), model))
    plain: FedAvg[Any] = FedAvg.model_validate({"loss": "binary_cross_entropy", "local": local})
    assert off.digest == run(tiny.experiment(plain, model)).digest
    on = run(tiny.experiment(FedGraB(local=local, control="all", warm_up=0), model))
    assert on.digest != off.digest


DATA = tiny.federation([[1.0], [1.0], [1.0]], [0, 0, 1], [[0, 1, 2], [0]])


def zeros() -> SplitModel:
    layer = nn.Linear(1, 2, bias=False)
    nn.init.zeros_(layer.weight)
    return SplitModel(layer)


def controlled() -> Payload:
    """Return a model of zeros, with both classes under control."""
    return Payload({**grouped("model", zeros().tensors()), "tail/classes": torch.ones(2)})


def test_two_steps_of_a_client_by_hand() -> None:
    # z = 0, σ = 1/2, three samples in one batch, rate 1, x = 1, K_p = 1 alone.
    # Step 1: weights 1. ∂z of class 0: (-1/2, -1/2, 1/2)/3, up 1/3, down 1/6: Δ = 1/6, w = 1/6.
    #   Class 1 is its opposite: Δ = -1/6, w = -1/6.
    # Step 2: out = -Δ = ∓1/6. The classifier is trained, too: z = ±1/6.
    method = FedGraB(control="all", kp=1, ki=0.0, kd=0.0, local=LocalTraining(lr=1.0, epochs=2))
    client = tiny.client(DATA, 0, zeros())
    sent = method.train(controlled(), client)
    a = torch.tensor([-1 / 6, 1 / 6])
    pull, push = pull_of(a), pull_of(-a)
    s = torch.tensor([1 / 6, -1 / 6]).sigmoid()
    up = pull * (1 - s) * torch.tensor([2, 1]) / 3
    down = push * s * torch.tensor([1, 2]) / 3
    weight = torch.tensor([1 / 6, -1 / 6]) + up - down
    torch.testing.assert_close(sent.tensors["model/weight"].flatten(), weight)
    delta = torch.tensor([1 / 6, -1 / 6]) + up - down
    torch.testing.assert_close(client.state["balancer/delta"], delta)
    torch.testing.assert_close(client.state["balancer/out"], a)


def test_controllers_are_each_clients_own_and_are_taken_up_again() -> None:
    method, payload = FedGraB(control="all"), controlled()
    state = {
        f"balancer/{n}": torch.tensor([v, -v])
        for n, v in (("delta", 3.0), ("out", 4.0), ("last", 5.0), ("before", 6.0))
    }
    first = method.start(payload, tiny.client(DATA, 0, zeros(), state)).aux
    other = method.start(payload, tiny.client(DATA, 1, zeros())).aux
    kept = [float(t[0]) for t in (first.delta, first.out, first.last, first.before)]
    assert kept == [3.0, 4.0, 5.0, 6.0]
    assert other.delta.tolist() == [0.0, 0.0]
    assert kept_numbers(first).keys() == {"delta", "out", "last", "before"}


def test_the_tail_is_read_off_the_average_once_after_the_warm_up() -> None:
    model = zeros()
    with torch.no_grad():
        model.classifier.get_parameter("weight").copy_(torch.tensor([[1.0], [0.5]]))
    method, state = FedGraB(warm_up=0.5), FedGraBState(model.tensors())
    told = []
    for number in (1, 2, 3, 4):
        # The resident model is scratch: what counts is the state.
        server = tiny.server(zeros(), 2, round=number, rounds=4)
        exchange = method.round(state, server)
        (task, *_) = next(exchange)
        told.append(task.payload.tensors.get("tail/classes"))
        if number == 3:
            assert server.logged == {"controlled": 1}
    assert told[0] is told[1] is None
    assert told[2] is not None
    assert told[2].tolist() == [0.0, 1.0]
    assert told[2].dtype == torch.float32
    # Later rows do not matter.
    known = FedGraBState(zeros().tensors(), tail=torch.tensor([1.0, 1.0]))
    (task, *_) = next(method.round(known, tiny.server(model, 2, round=4, rounds=4)))
    assert task.payload.tensors["tail/classes"].tolist() == [1.0, 1.0]
    every = FedGraB(control="all", warm_up=0)
    (task, *_) = next(every.round(state, tiny.server(model, 2, round=1, rounds=4)))
    assert task.payload.tensors["tail/classes"].tolist() == [1.0, 1.0]


def test_before_the_tail_is_known_gradients_are_weighed_the_same_and_added_up() -> None:
    # One step from zero: as in the first step above, and no controller has said anything.
    method = FedGraB(local=LocalTraining(lr=1.0))
    client = tiny.client(DATA, 0, zeros())
    sent = method.train(Payload(grouped("model", zeros().tensors())), client)
    step = torch.tensor([1 / 6, -1 / 6])
    torch.testing.assert_close(sent.tensors["model/weight"].flatten(), step)
    torch.testing.assert_close(client.state["balancer/delta"], step)
    assert client.state["balancer/out"].tolist() == [0.0, 0.0]


def test_the_three_constants_have_their_places() -> None:
    # Δ = -1 in both: out = K_p + K_i + K_d, and K_d's second difference counts last twice.
    method = FedGraB(control="all", kp=1.0, ki=0.25, kd=0.5)
    state = {
        "balancer/delta": torch.tensor([-1.0, -1.0]),
        "balancer/last": torch.tensor([2.0, 0.0]),
    }
    local = method.start(controlled(), tiny.client(DATA, 0, zeros(), state))
    method.batch_loss(local, torch.ones(1, 1), torch.tensor([0]))
    # Class 0: (1 - 2) + 0.25 + 0.5 (1 - 4) = -2.25; class 1: 1 + 0.25 + 0.5 = 1.75.
    assert local.aux.out.tolist() == [-2.25, 1.75]
