"""FedDF: the mean logits of the uploads, distilled into their average."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor, nn

from fedtail import FedAvg, FedDF, ModelState, run
from fedtail.data.federation import ServerData
from fedtail.methods.feddf import EarlyStopping
from fedtail.models import SplitModel
from fedtail.protocol import Payload, Server, Update
from fedtail.setting import prepare

ONE = ServerData(torch.ones(1, 1), torch.zeros(1, dtype=torch.int64))


def linear() -> SplitModel:
    return SplitModel(nn.Linear(1, 2, bias=False))


def server_of(model: SplitModel, data: ServerData = ONE) -> Server:
    return tiny.server(model, 2, data=data)


def update(k: int, w: list[float], samples: int = 1) -> Update:
    return Update(k, Payload({"model/weight": torch.tensor(w)[:, None]}, {"samples": samples}))


def probability(s: ModelState) -> float:
    return float(torch.softmax(s.model["weight"][:, 0], dim=0)[0])


def test_the_teacher_is_the_mean_of_the_logits() -> None:
    # On the one sample x = 1 the uploads say z = (2, 0) and (-1, 3), with 9 and 1 samples. The
    # average is (1.7, 0.3), the plain mean of the logits (0.5, 1.5): softmax 0.268941. (The mean
    # of the softmaxes would be (0.880797 + 0.017986) / 2 = 0.449392.)
    model = linear()
    method = FedDF(distil_steps=150, distil_lr=0.1)
    s = ModelState(model.tensors())
    uploads = [update(0, [2.0, 0.0], 9), update(1, [-1.0, 3.0], 1)]
    server = server_of(model)
    fused = tiny.after(method, s, uploads, server)
    assert probability(fused) == pytest.approx(0.268941, abs=1e-3)
    assert float(server.logged["distil_after"]) < 1e-4 < float(server.logged["distil_before"])


def test_one_step_of_adam_by_hand() -> None:
    # Adam's first step is the rate times the sign of the gradient: the average (1.7, 0.3) predicts
    # 0.80 where the teacher says 0.27, so it goes to (1.6, 0.4) with a rate of 0.1.
    model = linear()
    s = ModelState(model.tensors())
    uploads = [update(0, [2.0, 0.0], 9), update(1, [-1.0, 3.0], 1)]
    fused = tiny.after(FedDF(distil_steps=1, distil_lr=0.1), s, uploads, server_of(model))
    assert fused.model["weight"][:, 0].tolist() == pytest.approx([1.6, 0.4], abs=1e-5)


def test_an_empty_upload_has_no_voice() -> None:
    model = linear()
    method = FedDF(distil_steps=150, distil_lr=0.1)
    s = ModelState(model.tensors())
    with_empty = [update(0, [2.0, 0.0], 3), update(1, [-50.0, 50.0], 0)]
    fused = tiny.after(method, s, with_empty, server_of(model))
    assert probability(fused) == pytest.approx(0.880797, abs=1e-3)
    # Nobody has samples: the model stays.
    assert tiny.after(method, s, [update(1, [-50.0, 50.0], 0)], server_of(model)) is s


def test_labels_are_not_looked_at() -> None:
    setting = prepare(
        tiny.experiment(FedDF(local=tiny.quick(), distil_steps=3), server_per_class=2)
    )
    model, server = setting.model, setting.server(1)
    assert server.data is not None
    s = ModelState(model.tensors())
    uploads = [
        Update(k, Payload({f"model/{n}": t + k for n, t in s.model.items()}, {"samples": 1}))
        for k in range(2)
    ]
    other = replace(server, data=ServerData(server.data.x, torch.zeros_like(server.data.y)))
    method = FedDF(distil_steps=3)
    found = [tiny.after(method, s, uploads, one).model for one in (server, other)]
    assert all(torch.equal(found[0][name], found[1][name]) for name in s.model)


@pytest.mark.parametrize("model", [tiny.plain_model, tiny.norm_model, tiny.dropout_model])
def test_without_steps_it_is_fedavg(model: Any) -> None:
    local = tiny.quick(momentum=0.9)
    result = run(tiny.experiment(FedDF(local=local, distil_steps=0), model, server_per_class=2))
    plain = run(tiny.experiment(FedAvg(local=local), model, server_per_class=2))
    assert result.digest == plain.digest
    for one, other in zip(result.history, plain.history, strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}


def test_clients_notice_nothing() -> None:
    result = run(tiny.experiment(FedDF(local=tiny.quick(), distil_steps=3), server_per_class=2))
    plain = run(tiny.experiment(FedAvg(local=tiny.quick()), server_per_class=2))
    assert result.digest != plain.digest
    for one, other in zip(result.history, plain.history, strict=True):
        assert one["traffic"] == other["traffic"]


def test_it_stops_early_and_keeps_the_best() -> None:
    # Two uploads that agree: the average predicts what they do, and no step is a gain. It stops
    # after `patience` steps and gives the average back, to the bit.
    model = linear()
    data = ServerData(torch.linspace(-1, 1, 10)[:, None], torch.zeros(10, dtype=torch.int64))
    method = FedDF(distil_steps=50, patience=7, distil_lr=0.5)
    server = server_of(model, data)
    agreed = [update(k, [1.25, -0.5]) for k in range(2)]
    fused = tiny.after(method, ModelState(model.tensors()), agreed, server)
    assert torch.equal(fused.model["weight"][:, 0], torch.tensor([1.25, -0.5]))
    assert server.logged["distil_steps"] == 7


def test_patience_does_not_stop_what_gains() -> None:
    model = linear()
    data = ServerData(torch.ones(10, 1), torch.zeros(10, dtype=torch.int64))
    server = server_of(model, data)
    apart = [update(0, [2.0, 0.0], 9), update(1, [-1.0, 3.0], 1)]
    method = FedDF(distil_steps=40, patience=5, distil_lr=0.01)
    tiny.after(method, ModelState(model.tensors()), apart, server)
    assert server.logged["distil_steps"] == 40


def test_what_is_watched() -> None:
    # The student is looked at every max(1, patience // 10) steps; a gain starts the count anew.
    model = linear()
    target = torch.tensor([[0.5, 0.5]])

    def holding(w: float) -> Tensor:
        model.load({"weight": torch.tensor([[w], [0.0]])})
        return model.tensors()["weight"]

    holding(2.0)
    watch = EarlyStopping(server_of(model), torch.ones(1, 1), target, 1.0, patience=20)
    assert watch.every == 2
    best = holding(1.0)
    assert not watch(1)
    assert watch.best_step == 0  # not looked at
    assert not watch(2)
    assert watch.best_step == 2
    holding(3.0)
    assert not watch(4)
    assert not watch(21)
    assert watch(22)
    assert torch.equal(watch.best["weight"], best)
    assert model.training


def test_a_model_is_not_to_be_summed_before_it_is_seen() -> None:
    form = FedDF().train_form(Payload(), linear(), 2)
    assert form.why == FedDF().asks().single != ""
