"""RedGrape: the two-stage variant, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import tiny
import torch
from redgrape_toys import STEP, cloud, network
from torch import Tensor, nn

from fedtail import FedAvg, FedtailError, experts, run
from fedtail.methods import ModelState
from fedtail.methods.redgrape import RedGrape, RedGrapeState
from fedtail.models import CosineHead, SplitModel
from fedtail.protocol import Update
from fedtail.training import ServerSGD


@pytest.fixture(autouse=True)
def one_seed() -> Iterator[None]:
    """Give initial weights that repeat, and leave the global stream as it was."""
    state = torch.get_rng_state()
    torch.manual_seed(0)
    yield
    torch.set_rng_state(state)


# Two stages


def two_stage_history(**fields: Any) -> list[RedGrapeState]:
    """Return the states of four rounds by hand, the second stage beginning with the third."""
    method = RedGrape(per_class=2, two_stage=0.5, local=STEP.but(lr=0.1, epochs=3), **fields)
    data, model = cloud([0, 0, 0, 1, 2, 2]), network(method, norm=True)
    states = [method.init(model, tiny.server(model, 1))]
    for number in (1, 2, 3, 4):
        server = tiny.server(model, 1, round=number, rounds=4, num_classes=3)
        exchange = method.round(states[-1], server)
        task = next(exchange)[0]
        client = tiny.client(data, 0, model, round=number, rounds=4)
        with pytest.raises(StopIteration) as end:
            update = Update(0, method.train(task.payload, client))
            exchange.send(tiny.added(method, [update], server))
        states.append(end.value.value)
    return states


def changed(old: ModelState, new: ModelState) -> set[str]:
    return {name for name in old.model if not torch.equal(old.model[name], new.model[name])}


ENCODER = {"0.weight", "1.weight", "1.bias"}
BUFFERS = {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
W = {"3.weight", "3.bias"}
W_HAT = {"supplementary.weight", "supplementary.bias"}


@pytest.mark.parametrize("statistics", ["batch", "update", "running"])
def test_two_stages_train_the_encoder_and_then_the_head(statistics: str) -> None:
    states = two_stage_history(statistics=statistics)
    assert changed(states[0], states[1]) == changed(states[1], states[2]) == ENCODER | BUFFERS | W
    assert changed(states[2], states[3]) == changed(states[3], states[4]) == W | W_HAT
    assert [len(s.prototypes["classes"]) for s in states] == [0, 0, 0, 3, 3]
    assert [s.retraining for s in states] == [False, False, False, True, True]


def test_a_server_momentum_does_not_move_the_frozen_encoder() -> None:
    states = two_stage_history(server_optimizer=ServerSGD(momentum=0.9))
    assert changed(states[1], states[2]) == ENCODER | BUFFERS | W
    assert changed(states[2], states[3]) == changed(states[3], states[4]) == W | W_HAT


def test_the_first_stage_is_fedavg() -> None:
    chosen: dict[str, Any] = {"local": tiny.quick(momentum=0.9)}
    plain = run(tiny.experiment(FedAvg(**chosen), tiny.norm_model, rounds=1))
    method = RedGrape(two_stage=0.5, **chosen)
    found = run(tiny.experiment(method, tiny.norm_model, rounds=2))
    assert found.history[0]["loss"] == plain.history[0]["loss"]
    assert found.history[0]["per_class"] == plain.history[0]["per_class"]


def test_the_second_stage_begins_with_a_new_head_once() -> None:
    method = RedGrape(two_stage=0.5)
    model = network(method)
    state = method.init(model, tiny.server(model, 1))

    def first_task(s: RedGrapeState, number: int) -> dict[str, Tensor]:
        server = tiny.server(model, 1, round=number, rounds=4)
        return next(method.round(s, server))[0].payload.group("model")

    assert torch.equal(first_task(state, 2)["3.weight"], state.model["3.weight"])
    new = first_task(state, 3)
    assert not torch.equal(new["3.weight"], state.model["3.weight"])
    # As torch draws it: uniform within 1 / sqrt(4).
    assert float(new["3.weight"].abs().max()) <= 0.5
    assert torch.equal(new["0.weight"], state.model["0.weight"])
    # If nobody answered, the old state stays and the next round tries again.
    assert not torch.equal(first_task(state, 4)["3.weight"], state.model["3.weight"])
    going = replace(state, retraining=True)
    assert torch.equal(first_task(going, 4)["3.weight"], state.model["3.weight"])


def test_two_stages_come_to_their_end_with_every_model() -> None:
    for model in (tiny.plain_model, tiny.unbiased_model, tiny.dropout_model):
        method = RedGrape(per_class=2, two_stage=0.34, local=tiny.quick())
        result = run(tiny.experiment(method, model))
        assert not any(record["dropped"] for record in result.history)


# What it cannot do


@pytest.mark.parametrize("kind", ["cosine", "experts"])
def test_a_classifier_that_is_not_linear_is_refused(kind: str) -> None:
    chain = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 3))
    model = (
        experts(chain, "1", 2)
        if kind == "experts"
        else SplitModel(nn.Sequential(nn.Linear(2, 4), CosineHead(4, 3)), "1")
    )
    with pytest.raises(FedtailError, match="need a linear classifier"):
        RedGrape().build_model(model)
