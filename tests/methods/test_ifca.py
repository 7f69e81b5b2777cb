"""IFCA: who chooses what, averages within clusters, and the case in which it is FedAvg."""

from __future__ import annotations

import math
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor, nn

from fedtail import (
    IFCA,
    BalancedSoftmax,
    FedAvg,
    LocalTraining,
    ProxyPrior,
    ServerSGD,
    run,
)
from fedtail.methods.ifca import IFCAState
from fedtail.models import SplitModel
from fedtail.models.ensemble import Ensemble, of_member
from fedtail.protocol import Payload, Update
from fedtail.setting import prepare

# Client 0 has one sample of class 0, client 1 three of class 1; x = 1 throughout.
DATA = tiny.federation([[1.0]] * 4, [0, 1, 1, 1], [[0], [1, 2, 3]])
STEP = LocalTraining(lr=1.0, batch_size=10)


def built(method: IFCA, *weights: tuple[float, float]) -> tuple[Ensemble, IFCAState]:
    """Return softmax regressions without bias, with these weights."""
    model = method.build_model(SplitModel(nn.Sequential(nn.Linear(1, 2, bias=False))))
    assert isinstance(model, Ensemble)
    for member, weight in zip(model.members, weights, strict=True):
        member.load({"0.weight": torch.tensor(weight).reshape(2, 1)})
    return model, method.new_state(model.tensors())


def one_round(method: IFCA, s: IFCAState, model: Ensemble) -> tuple[IFCAState, list[Update]]:
    server = tiny.server(model, len(DATA))
    payload = method.broadcast(s, server)
    updates = [Update(k, method.train(payload, tiny.client(DATA, k, model))) for k in (0, 1)]
    return tiny.after(method, s, updates, server), updates


def weights(s: IFCAState) -> list[list[float]]:
    return [s.model[f"members.{i}.0.weight"].flatten().tolist() for i in range(2)]


def test_one_round_by_hand() -> None:
    # Model 0 gives the softmax (1/4, 3/4), model 1 (3/4, 1/4). Client 0, of class 0, has the losses
    # ln 4 and ln 4/3 and takes model 1; client 1 takes model 0. With rate 1 each moves by
    # e_y - p: model 1 by (1/4, -1/4), model 0 by (-1/4, 1/4).
    log3 = math.log(3)
    method = IFCA(local=STEP, clusters=2)
    model, s = built(method, (0.0, log3), (log3, 0.0))
    s, updates = one_round(method, s, model)
    assert [u.payload.scalars["cluster"] for u in updates] == [1, 0]
    assert weights(s)[0] == pytest.approx([-0.25, log3 + 0.25], abs=1e-6)
    assert weights(s)[1] == pytest.approx([log3 + 0.25, -0.25], abs=1e-6)
    assert s.held is not None
    assert s.held.tolist() == [3, 1]


def test_a_cluster_that_nobody_chose_keeps_its_model() -> None:
    # Both models of a pair are equal for both clients: the first of equals is taken.
    method = IFCA(local=STEP, clusters=2)
    model, s = built(method, (0.0, 0.0), (1.0, 1.0))
    s, updates = one_round(method, s, model)
    assert [u.payload.scalars["cluster"] for u in updates] == [0, 0]
    assert weights(s)[1] == [1.0, 1.0]
    # FedAvg of the two, as in its own test.
    assert weights(s)[0] == pytest.approx([-0.25, 0.25])


def test_a_model_that_has_diverged_is_nobodys_choice() -> None:
    method = IFCA(local=STEP, clusters=2)
    model, s = built(method, (math.nan, 0.0), (0.0, 0.0))
    _, updates = one_round(method, s, model)
    assert [u.payload.scalars["cluster"] for u in updates] == [1, 1]


def test_a_client_without_samples_answers_nonetheless() -> None:
    method = IFCA(local=STEP, clusters=2)
    model, s = built(method, (1.0, 0.0), (0.0, 1.0))
    data = tiny.federation([[1.0]], [0], [[0], []])
    server = tiny.server(model, 2)
    reply = method.train(method.broadcast(s, server), tiny.client(data, 1, model))
    assert reply.scalars == {"samples": 0, "steps": 0, "cluster": 0}
    # It moves nothing: its cluster has no samples.
    new = tiny.after(method, s, [Update(1, reply)], server)
    assert weights(new) == weights(s)
    assert new.held is not None
    assert new.held.tolist() == [0, 0]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    "model", [tiny.plain_model, tiny.norm_model, tiny.dropout_model], ids=lambda m: m.__name__
)
def test_with_one_cluster_it_is_fedavg_to_the_bit(model: Any, shared: bool) -> None:
    local = tiny.quick(momentum=0.9)
    for test in ("largest", "ensemble"):
        method = IFCA(local=local, clusters=1, shared_trunk=shared, test=test)
        ours = run(tiny.experiment(method, model))
        assert ours.digest == run(tiny.experiment(FedAvg(local=local), model)).digest


def test_the_parts_of_fedavg_go_with_it() -> None:
    # A server optimiser, a prior that asks and statistics of the first client, all at k = 1.
    parts: dict[str, Any] = {
        "local": tiny.quick(),
        "loss": BalancedSoftmax(),
        "prior": ProxyPrior(),
        "server_optimizer": ServerSGD(momentum=0.5),
        "buffers": "first",
    }
    ours = run(tiny.experiment(IFCA(clusters=1, **parts), tiny.norm_model))
    theirs = run(tiny.experiment(FedAvg(**parts), tiny.norm_model))
    assert ours.digest == theirs.digest


def two_layers() -> Ensemble:
    base = SplitModel(nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 2, bias=False)))
    model = IFCA(clusters=2, shared_trunk=True).build_model(base)
    assert isinstance(model, Ensemble)
    return model


def sent(client: int, cluster: int, samples: int, trunk: float, head: float) -> Update:
    moved = torch.zeros(2, dtype=torch.int64)
    moved[cluster] = samples
    tensors = {
        "model/0.weight": torch.full((1, 1), trunk),
        "own/1.weight": torch.full((2, 1), head),
        "held/samples": moved,
    }
    scalars = {"samples": samples, "steps": 1, "cluster": cluster}
    return Update(client, Payload(tensors, scalars))


def test_a_shared_trunk_is_averaged_over_all() -> None:
    # Samples 1, 3, 4; clusters 0, 1, 1. Trunk: (1 · 8 + 3 · 0 + 4 · 2) / 8 = 2 in both models;
    # head 0: that of client 0, head 1: (3 · 7 + 4 · 0) / 7 = 3.
    model, method = two_layers(), IFCA(clusters=2, shared_trunk=True)
    updates = [sent(0, 0, 1, 8.0, 5.0), sent(1, 1, 3, 0.0, 7.0), sent(2, 1, 4, 2.0, 0.0)]
    s = tiny.after(method, method.new_state(model.tensors()), updates, tiny.server(model, 3))
    found = {name: tensor.flatten().tolist() for name, tensor in s.model.items()}
    assert found == {
        "members.0.0.weight": [2.0],
        "members.1.0.weight": [2.0],
        "members.0.1.weight": [5.0, 5.0],
        "members.1.1.weight": [3.0, 3.0],
    }


def test_a_shared_trunk_has_one_momentum() -> None:
    # β = 1/2. Trunk: v = Δ in the first round and βv + Δ in the second, once for both models; the
    # head of a cluster without updates keeps its velocity.
    method = IFCA(clusters=2, shared_trunk=True, server_optimizer=ServerSGD(momentum=0.5))
    model = two_layers()
    s = method.new_state({name: torch.zeros_like(t) for name, t in model.tensors().items()})
    server = tiny.server(model, 2)
    s = tiny.after(method, s, [sent(0, 0, 1, 4.0, 1.0)], server)
    s = tiny.after(method, s, [sent(0, 1, 1, 4.0, 3.0)], server)
    # Trunk: 0 → 4 (v = 4), then Δ = 0, v = 2: 6.
    found = {name: tensor.flatten()[0].item() for name, tensor in s.model.items()}
    assert found == {
        "members.0.0.weight": 6.0,
        "members.1.0.weight": 6.0,
        "members.0.1.weight": 1.0,
        "members.1.1.weight": 3.0,
    }


def test_models_begin_elsewhere_but_share_what_is_shared() -> None:
    for shared in (False, True):
        model = prepare(tiny.experiment(IFCA(clusters=3, shared_trunk=shared))).model
        tensors = model.tensors()
        base = prepare(tiny.experiment()).base.tensors()
        first, *others = (of_member(i, tensors) for i in range(3))
        assert all(torch.equal(first[name], base[name]) for name in base)
        for other in others:
            assert not torch.equal(other["3.weight"], first["3.weight"])
            assert torch.equal(other["1.weight"], first["1.weight"]) == shared
        assert not torch.equal(others[0]["3.weight"], others[1]["3.weight"])


def test_k_models_go_down_and_one_comes_back() -> None:
    # plain_model: 192 x 6 + 6 in the trunk and 6 x 4 + 4 in the head, 4 bytes each; up also
    # samples, steps and the cluster, and of three clusters who moved, 8 bytes each.
    trunk, head = 4 * (192 * 6 + 6), 4 * (6 * 4 + 4)
    for shared, down in ((False, 3 * (trunk + head)), (True, trunk + 3 * head)):
        method = IFCA(local=tiny.quick(), clusters=3, shared_trunk=shared)
        (record,) = run(tiny.experiment(method, rounds=1)).history
        assert record["bytes_down"] == 4 * down
        assert record["bytes_up"] == 4 * (trunk + head + 48)
        assert sum(record["method"][f"clients_{i}"] for i in range(3)) == 4


def test_what_is_tested() -> None:
    tensors = {"members.0.w": torch.tensor(0.0), "members.1.w": torch.tensor(1.0)}
    # Two clients with 7 samples in cluster 0, one with 6 in cluster 1; then 4 samples move over.
    many = IFCAState(tensors, held=torch.tensor([7, 6]))
    moved = IFCAState(tensors, held=torch.tensor([3, 10]))
    nobody = IFCAState(tensors)
    method = IFCA(clusters=2)
    assert [float(method.eval_model(s)["w"]) for s in (many, moved, nobody)] == [0.0, 1.0, 0.0]
    assert method.but(test="ensemble").eval_model(many) == tensors


def test_an_ensemble_is_tested_and_shipped_as_one() -> None:
    method = IFCA(local=tiny.quick(), clusters=2, test="ensemble")
    result = run(tiny.experiment(method, tiny.norm_model))
    x, y = prepare(tiny.experiment()).federation.test_batch(0, 12)

    def probability(i: int) -> Tensor:
        one = tiny.norm_model()
        one.load_state_dict(of_member(i, result.tensors))
        probabilities: Tensor = one.eval()(x).softmax(1)
        return probabilities.detach()

    mean = (probability(0) + probability(1)) / 2
    assert result.metrics["accuracy"] == pytest.approx(float((mean.argmax(1) == y).double().mean()))
    loss = -mean.log().gather(1, y[:, None]).mean()
    assert result.metrics["loss"] == pytest.approx(float(loss), rel=1e-5)


def test_who_moves_takes_its_samples_along() -> None:
    # Client 1 has three samples. It chooses model 0, later model 1: +3 there and -3 here.
    method, state = IFCA(local=STEP, clusters=2), dict[str, Tensor]()
    found = []
    for weights_ in (((0.0, 5.0), (5.0, 0.0)), ((5.0, 0.0), (0.0, 5.0))):
        model, s = built(method, *weights_)
        sent_ = method.broadcast(s, tiny.server(model, 2))
        reply = method.train(sent_, tiny.client(DATA, 1, model, state))
        found.append(reply.tensors["held/samples"].tolist())
    assert found == [[3, 0], [-3, 3]]
