"""CCVR: Gaussians of the clients' features, pooled, and a classifier re-trained on draws."""

from __future__ import annotations

from typing import Any

import pytest
import tiny
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedtail import CCVR, FedAvg, FedtailError, Method, ModelState, run
from fedtail.forms import defect
from fedtail.models import SplitModel
from fedtail.models.heads import CosineHead
from fedtail.protocol import Payload, Update
from fedtail.training.moments import ClassSums

# Two clients of vectors; client 2 has nothing, nobody class 2.
X = [[1.0, 0.0], [3.0, 0.0], [0.0, 2.0], [0.0, 4.0], [2.0, 0.0]]
DATA = tiny.federation(X, [0, 0, 1, 1, 0], [[0, 1, 2], [3, 4], []], classes=3)


def identity(bias: bool = True) -> SplitModel:
    """Features are the inputs; the classifier begins at zero."""
    model = SplitModel(nn.Sequential(nn.Identity(), nn.Linear(2, 3, bias=bias)))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


def calibrated(method: CCVR, model: SplitModel, **fields: Any) -> ModelState:
    """Drive `finalize` by hand, with every client's answer."""
    s = ModelState(model.tensors())
    server = tiny.server(model, 3, **{"num_classes": 3, **fields})
    exchange = method.finalize(s, server)
    tasks = next(exchange)
    assert [(task.client, task.action) for task in tasks] == [(k, "moments") for k in range(3)]
    updates = [
        Update(task.client, method.moments(task.payload, tiny.client(DATA, task.client, model)))
        for task in tasks
    ]
    with pytest.raises(StopIteration) as stop:
        exchange.send(tiny.added(method, updates, server, "moments"))
    final: ModelState = stop.value.value
    return final


def test_what_a_client_sends() -> None:
    model = identity()
    payload = Payload({f"model/{n}": t for n, t in model.tensors().items()})
    sent = [CCVR().moments(payload, tiny.client(DATA, k, model)) for k in range(3)]
    assert {frozenset(p.tensors) for p in sent} == {
        frozenset(f"moments/{name}" for name in ClassSums._fields)
    }
    assert [p.tensors["moments/classes"].tolist() for p in sent] == [[0, 1], [0, 1], []]
    # Client 0, class 0: (1, 0) and (3, 0), so 1 + 3 and 1² + 3²; class 1: (0, 2).
    assert sent[0].tensors["moments/sums"].tolist() == [[4.0, 0.0], [0.0, 2.0]]
    assert sent[0].tensors["moments/products"].tolist() == [[10.0, 0.0, 0.0], [0.0, 0.0, 4.0]]
    # Of each class two int64, d + d(d+1)/2 = 5 float64.
    assert [p.nbytes for p in sent] == [2 * (16 + 40), 2 * (16 + 40), 0]


def test_one_step_of_re_training_by_hand() -> None:
    # Pooled: class 0 is 1, 3, 2 on the first axis, class 1 is 2, 4 on the second. All 2·M draws in
    # one batch, from a classifier of zeros: p = 1/3 each, so with h̄_c the mean draw of class c the
    # gradient of row i is (1/2) Σ_c (1/3 - [c = i]) h̄_c, and a step of rate 1 subtracts it. With
    # draws of mean (a, 0) and (0, b): row 0 is (a/3, -b/6), row 1 (-a/6, b/3), row 2
    # (-a/6, -b/6); the bias is (1/6, 1/6, -1/3).
    method = CCVR(samples=400, head_epochs=1, head_lr=1.0, head_batch=1000)
    final = calibrated(method, identity()).model
    weight = final["1.weight"]
    a, b = float(3 * weight[0, 0]), float(3 * weight[1, 1])
    expected = torch.tensor([[a / 3, -b / 6], [-a / 6, b / 3], [-a / 6, -b / 6]])
    assert torch.allclose(weight, expected, atol=1e-5)
    assert torch.allclose(final["1.bias"], torch.tensor([1 / 6, 1 / 6, -1 / 3]), atol=1e-6)
    # The mean of 400 draws is within four errors of μ_0 = 2 (σ² = 1) and μ_1 = 3 (σ² = 2).
    assert a == pytest.approx(2, abs=4 * (1 / 400) ** 0.5)
    assert b == pytest.approx(3, abs=4 * (2 / 400) ** 0.5)


@pytest.mark.parametrize("bias", [True, False])
def test_re_training_separates_the_classes(bias: bool) -> None:
    final = calibrated(CCVR(samples=50, head_lr=0.1), identity(bias)).model
    head = [final[n] for n in ("1.weight", "1.bias") if n in final]
    z = functional.linear(torch.tensor(X), *head)
    assert z.argmax(dim=1).tolist() == [0, 0, 1, 1, 0]


def test_it_starts_from_the_trained_classifier_and_the_rounds_own_numbers() -> None:
    method = CCVR(samples=4, head_epochs=1, head_lr=1e-6)
    model = identity()
    nn.init.constant_(model.classifier.get_parameter("weight"), 7.0)
    near = calibrated(method, model).model["1.weight"]
    assert torch.allclose(near, torch.full((3, 2), 7.0), atol=1e-4)
    assert not torch.equal(near, calibrated(method, model, round=2).model["1.weight"])


def test_statistics_that_clients_keep_are_not_used() -> None:
    # The tested model has the average statistics, so the moments are taken with them.
    model = SplitModel(nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 3)))
    payload = Payload({f"model/{n}": t for n, t in model.tensors().items()})
    own = {"buffer/0.running_mean": torch.tensor([100.0, 100.0])}
    method = CCVR(buffers="local")
    kept = method.moments(payload, tiny.client(DATA, 0, model, dict(own)))
    none = method.moments(payload, tiny.client(DATA, 0, model))
    assert torch.equal(kept.tensors["moments/sums"], none.tensors["moments/sums"])


@pytest.mark.parametrize("model", [tiny.plain_model, tiny.norm_model, tiny.dropout_model])
def test_training_is_fedavgs(model: Any) -> None:
    local = tiny.quick(momentum=0.9)
    with_moments = run(tiny.experiment(CCVR(local=local, samples=5), model))
    plain = run(tiny.experiment(FedAvg(local=local), model))
    trained: dict[str, Tensor] = with_moments.state.model
    assert all(torch.equal(trained[name], t) for name, t in plain.tensors.items())
    # What is shipped differs in the classifier and in nothing else.
    differ = {n for n, t in plain.tensors.items() if not torch.equal(t, with_moments.tensors[n])}
    start = {"plain_model": "3.", "norm_model": "4.", "dropout_model": "5."}[model.__name__]
    assert differ == {n for n in plain.tensors if n.startswith(start)}


@pytest.mark.parametrize("fields", [{"samples": 0}, {"head_epochs": 0}])
def test_without_draws_or_epochs_it_is_fedavg(fields: dict[str, int]) -> None:
    # Also in what is sent: nothing is asked that nothing is made of.
    result = run(tiny.experiment(CCVR(local=tiny.quick(), **fields)))
    plain = run(tiny.experiment(FedAvg(local=tiny.quick())))
    for one, other in zip(result.history, plain.history, strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}
    assert result.digest == plain.digest


def test_the_extra_exchange_is_paid_once() -> None:
    # After the last round: the model down to all six clients; up, of each of a client's classes,
    # two int64 and 6 + 21 float64. The clients hold 3, 1, 1, 2, 2 and 3 classes.
    result = run(tiny.experiment(CCVR(local=tiny.quick(), samples=3)))
    plain = run(tiny.experiment(FedAvg(local=tiny.quick())))
    extra = [
        (one["bytes_down"] - other["bytes_down"], one["bytes_up"] - other["bytes_up"])
        for one, other in zip(result.history, plain.history, strict=True)
    ]
    size = sum(t.numel() for t in plain.tensors.values()) * 4
    assert extra == [(0, 0), (0, 0), (6 * size, 12 * (16 + 8 * 27))]


def test_another_classifier_is_refused_before_work_starts() -> None:
    model = SplitModel(nn.Sequential(nn.Identity(), CosineHead(2, 3)), "1")
    with pytest.raises(FedtailError, match="linear classifier"):
        CCVR().build_model(model)


def test_it_says_what_is_revealed() -> None:
    assert any("class counts" in need for need in Method.registry["ccvr"].needs)


def test_what_a_client_may_send() -> None:
    # Its classes have as many samples as it announced, and not more.
    model = identity()
    payload = Payload({f"model/{n}": t for n, t in model.tensors().items()})
    form = CCVR().moments_form(payload, model, 3)
    sent = CCVR().moments(payload, tiny.client(DATA, 0, model))
    assert defect(sent, form, 3) == ""
    assert "counts" in defect(sent, form, 2)
    none = {**sent.tensors, "moments/counts": torch.tensor([0, 3])}
    assert defect(Payload(none), form, 3) == ""
    less = {**sent.tensors, "moments/counts": torch.tensor([-1, 3])}
    assert "counts" in defect(Payload(less), form, 3)
