"""cRT-IB: FedAvg, then a new classifier on an encoder that does not move."""

from __future__ import annotations

from typing import Any

import pytest
import tiny
import torch
from torch import Tensor, nn

from fedtail import CRTIB, ClassBalanced, FedAvg, LocalTraining, Shuffled, run
from fedtail.methods.crt_ib import CRTState
from fedtail.models import SplitModel
from fedtail.protocol import Payload, Server, Update
from fedtail.reduce import Reduced
from fedtail.training import ServerSGD

MODELS = [tiny.plain_model, tiny.norm_model, tiny.dropout_model]
HEADS = {"plain_model": "3.", "norm_model": "4.", "dropout_model": "5."}


def states(method: CRTIB, model: Any, rounds: int = 4) -> list[CRTState]:
    """Return the state after each round of one run."""
    seen: list[CRTState] = []

    class Watched(CRTIB):
        def aggregate(self, s: CRTState, found: Reduced, server: Server) -> CRTState:
            seen.append(super().aggregate(s, found, server))
            return seen[-1]

    fields = {name: getattr(method, name) for name in CRTIB.model_fields}
    run(tiny.experiment(Watched(**fields), model, rounds=rounds))
    return seen


def split(s: CRTState, start: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    encoder = {n: t for n, t in s.model.items() if not n.startswith(start)}
    return encoder, {n: t for n, t in s.model.items() if n.startswith(start)}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("server", [ServerSGD(), ServerSGD(momentum=0.9)])
def test_the_encoder_is_frozen_in_the_second_stage(model: Any, server: ServerSGD) -> None:
    # Rounds 1 and 2 train everything; 3 and 4 the classifier alone, whatever the server remembers
    # of the encoder's last steps, and whatever decays weights.
    local = tiny.quick(momentum=0.9, weight_decay=0.1)
    method = CRTIB(local=local, first_stage=0.5, server_optimizer=server)
    seen = [split(s, HEADS[model.__name__]) for s in states(method, model)]
    assert not same(seen[0][0], seen[1][0])
    assert same(seen[1][0], seen[2][0])
    assert same(seen[1][0], seen[3][0])
    assert not any(torch.equal(seen[2][1][n], seen[3][1][n]) for n in seen[2][1])


@pytest.mark.parametrize("model", MODELS)
def test_the_first_stage_is_fedavg(model: Any) -> None:
    local = tiny.quick(momentum=0.9)
    seen = states(CRTIB(local=local, first_stage=0.5), model)
    # Of a run of four rounds, two; the learning rate does not know of the end.
    plain = run(tiny.experiment(FedAvg(local=local), model, rounds=2))
    assert same(seen[1].model, plain.tensors)


def test_a_first_stage_of_everything_is_fedavg() -> None:
    result = run(tiny.experiment(CRTIB(local=tiny.quick(), first_stage=1)))
    plain = run(tiny.experiment(FedAvg(local=tiny.quick())))
    assert result.digest == plain.digest
    for one, other in zip(result.history, plain.history, strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}


def test_the_classifier_is_drawn_anew_once() -> None:
    # Prepare: a classifier far away, and what the server remembers of it.
    model = SplitModel(nn.Sequential(nn.Identity(), nn.Linear(2, 2)))
    far = {"1.weight": torch.full((2, 2), 9.0), "1.bias": torch.full((2,), 9.0)}
    memory = {name: {"v": torch.ones_like(t)} for name, t in far.items()}
    s = CRTState(far, memory={**memory, "0.other": {}})
    method = CRTIB(first_stage=0.5)

    # Execute: the tasks of round 2 of 2.
    server = tiny.server(model, 2, round=2, rounds=2)
    exchange = method.round(s, server)
    tasks = next(exchange)

    # Assert: U(-1/√2, 1/√2), for everybody the same; only the encoder's memory is kept.
    assert [task.action for task in tasks] == ["retrain", "retrain"]
    sent = tasks[0].payload.group("model")
    assert float(sent["1.weight"].abs().max()) <= 2**-0.5
    answers = [Update(k, Payload(tasks[0].payload.tensors, {"samples": 1})) for k in range(2)]
    with pytest.raises(StopIteration) as stop:
        exchange.send(tiny.added(method, answers, server, "retrain"))
    new: CRTState = stop.value.value
    assert new.retraining
    assert set(new.memory) == {"0.other"}
    # The next round goes on with it, though it would draw another one.
    tasks = next(method.round(new, tiny.server(model, 2, round=3, rounds=3)))
    assert torch.equal(tasks[0].payload.group("model")["1.weight"], sent["1.weight"])


def test_the_second_stage_draws_balanced_batches_and_sends_the_classifier() -> None:
    # Prepare: nine samples at +1 of class 0, one at -1 of class 1; a classifier of zeros.
    x = [[1.0]] * 9 + [[-1.0]]
    data = tiny.federation(x, [0] * 9 + [1], [list(range(10))])
    model = SplitModel(nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 2)))
    nn.init.zeros_(model.classifier.get_parameter("weight"))
    nn.init.zeros_(model.classifier.get_parameter("bias"))
    payload = Payload({f"model/{n}": t for n, t in model.tensors().items()})
    local = LocalTraining(lr=1.0, batch_size=1000, steps=1)
    client = tiny.client(data, 0, model, round=2, rounds=2)

    # Execute
    biases = {}
    for name, sampler in (("balanced", ClassBalanced()), ("as they are", Shuffled())):
        method = CRTIB(local=local, first_stage=0.5, head_sampler=sampler)
        sent = method.retrain(payload, client)
        assert set(sent.tensors) == {"model/1.weight", "model/1.bias"}
        biases[name] = float(sent.tensors["model/1.bias"][0])

    # Assert: from p = 1/2, a step of rate 1 moves the bias of class 0 to its share minus 1/2. As
    # they are, the share is 0.9; balanced, it is that of ten draws of probability 1/2.
    assert biases["as they are"] == pytest.approx(0.4)
    assert abs(biases["balanced"]) < 0.4


def test_traffic_of_the_second_stage() -> None:
    # Up goes the classifier alone: 4 · 6 + 4 numbers instead of 192 · 6 + 6 + 28.
    result = run(tiny.experiment(CRTIB(local=tiny.quick(), first_stage=0.5), rounds=2))
    first, second = result.history
    assert first["bytes_up"] == 4 * (4 * 1186 + 16)
    assert second["bytes_up"] == 4 * (4 * 28 + 16)
    assert first["bytes_down"] == second["bytes_down"] == 4 * 4 * 1186
