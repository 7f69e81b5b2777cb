"""CReFF: what is sent, what the server makes of it, and that FedAvg is left alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedtail import CReFF, FedAvg, FedtailError, LocalTraining, run
from fedtail.data.federation import Federation
from fedtail.methods.creff import CReFFState
from fedtail.models import SplitModel
from fedtail.models.heads import CosineHead
from fedtail.protocol import Payload, Server, Update
from fedtail.training.federated_features import Head

QUICK: dict[str, Any] = {"features": 6, "match_steps": 8, "head_epochs": 8}
# Client 0 holds classes 0 and 1, client 1 class 0 alone, client 2 nothing; nobody class 2.
X = [[1.0, 0.0], [0.0, 2.0], [2.0, 2.0], [3.0, 1.0]]
DATA = tiny.federation(X, [0, 1, 0, 0], [[0, 1], [2, 3], []], classes=3)


def method(**fields: Any) -> CReFF:
    return CReFF(local=LocalTraining(lr=0.1, batch_size=4), **{**QUICK, **fields})


def identity(bias: bool = True) -> SplitModel:
    """Features are the inputs themselves."""
    state = torch.get_rng_state()
    torch.manual_seed(0)
    model = SplitModel(nn.Sequential(nn.Identity(), nn.Linear(2, 3, bias=bias)))
    torch.set_rng_state(state)
    return model


def server_of(model: SplitModel, **fields: Any) -> Server:
    return tiny.server(model, 3, **{"num_classes": 3, **fields})


def replies(
    creff: CReFF, s: CReFFState, model: SplitModel, data: Federation = DATA
) -> list[Update]:
    payload = creff.broadcast(s, server_of(model))
    return [Update(k, creff.train(payload, tiny.client(data, k, model))) for k in range(len(data))]


def parts(s: CReFFState) -> tuple[Tensor, dict[str, Tensor]]:
    assert s.features is not None
    assert s.head is not None
    return s.features, s.head


@pytest.mark.parametrize("bias", [True, False])
def test_clients_send_the_gradient_of_each_of_their_classes(bias: bool) -> None:
    # Prepare: of all samples, whatever a repeat of augmented ones would draw.
    creff, model = method(repeats=1, repeat_samples=1), identity(bias)
    s = creff.init(model, server_of(model))
    _, head = parts(s)

    # Execute
    sent = [update.payload for update in replies(creff, s, model)]

    # Assert: autograd at v̂, not at v; client 2 has no rows, and the names are the same for all.
    assert [p.tensors["grad/classes"].tolist() for p in sent] == [[0, 1], [0], []]
    names = {"grad/classes", "grad/weight", *(["grad/bias"] if bias else [])}
    assert all({n for n in p.tensors if n.startswith("grad/")} == names for p in sent)
    assert sent[2].tensors["grad/weight"].shape == (0, 3, 2)
    v = [head[n].clone().requires_grad_() for n in ("1.weight", "1.bias") if n in head]
    z = functional.linear(torch.tensor(X[2:]), *v)
    g = torch.autograd.grad(functional.cross_entropy(z, torch.tensor([0, 0])), v)
    assert torch.allclose(sent[1].tensors["grad/weight"][0], g[0], atol=1e-6)
    if bias:
        assert torch.allclose(sent[1].tensors["grad/bias"][0], g[1], atol=1e-6)


def test_traffic() -> None:
    # Head: 3 · 2 + 3 numbers. Down: w and one more head. Up: one head's gradient a local class and
    # an int64 for its number, beside w and two scalars.
    creff, model = method(), identity()
    s = creff.init(model, server_of(model))
    assert creff.broadcast(s, server_of(model)).nbytes == 4 * (9 + 9)
    assert [u.payload.nbytes for u in replies(creff, s, model)] == [
        4 * 9 + 16 + classes * (4 * 9 + 8) for classes in (2, 1, 0)
    ]


def test_one_round_on_the_server() -> None:
    # Prepare
    creff, model = method(), identity()
    server = server_of(model)
    s = creff.init(model, server)
    old_features, old_head = parts(s)

    # Execute
    new = tiny.after(creff, s, replies(creff, s, model), server)
    features, head = parts(new)

    # Assert: only what was reported moves; the head is new; the old state is as it was.
    assert not torch.equal(features[0], old_features[0])
    assert not torch.equal(features[1], old_features[1])
    assert torch.equal(features[2], old_features[2])
    assert set(head) == {"1.weight", "1.bias"}
    assert not torch.equal(head["1.weight"], old_head["1.weight"])
    assert parts(creff.init(model, server))[0].equal(old_features)
    logged = {name: float(value) for name, value in server.logged.items()}
    assert set(logged) == {"match_loss", "dissimilarity_before", "dissimilarity_after"}
    assert 0 <= logged["dissimilarity_after"] < logged["dissimilarity_before"] <= 2
    # Tested is the extractor with the new head, under the user's own names.
    assert creff.eval_model(new).keys() == model.tensors().keys()
    assert torch.equal(creff.eval_model(new)["1.weight"], head["1.weight"])


def test_the_server_counts_clients_not_samples() -> None:
    # A class that two clients report is matched with the plain mean of their gradients, though one
    # of them has a hundred times the samples.
    creff, model = method(), identity()
    server = server_of(model)
    s = creff.init(model, server)

    def update(k: int, samples: int, value: Tensor) -> Update:
        tensors = {
            **{f"model/{n}": t for n, t in model.tensors().items()},
            "grad/classes": torch.tensor([0]),
            "grad/weight": value[None],
            "grad/bias": value.sum(dim=1)[None],
        }
        return Update(k, Payload(tensors, {"samples": samples}))

    a, b = (torch.randn(3, 2, generator=torch.Generator().manual_seed(i)) for i in (0, 1))
    both = tiny.after(creff, s, [update(0, 1, a), update(1, 100, b)], server)
    mean = tiny.after(creff, s, [update(0, 5, (a + b) / 2)], server)
    assert torch.allclose(parts(both)[0], parts(mean)[0], atol=1e-5)


def test_real_features_match_at_once() -> None:
    # m = n_c, one client, no augmentation: the features give the gradients that are asked for.
    data = tiny.federation(X, [0, 1, 0, 1], [[0, 1, 2, 3]], classes=3)
    creff, model = method(features=2, match_steps=0, matching="paper"), identity()
    server = server_of(model)
    s = creff.init(model, server)
    x = torch.tensor(X)
    real = torch.stack([x[[0, 2]], x[[1, 3]], torch.zeros(2, 2)])
    tiny.after(creff, replace(s, features=real), replies(creff, s, model, data), server)
    assert float(server.logged["match_loss"]) == pytest.approx(0, abs=1e-5)
    assert float(server.logged["dissimilarity_before"]) == pytest.approx(0, abs=1e-5)


def test_paper_and_code() -> None:
    # Per class the code adds up 3 rows and the bias, the paper takes the mean of the 3 rows, so one
    # step of the paper with three times the rate is the code's but for the bias and its small eps.
    model = identity(bias=False)
    server = server_of(model)
    found = []
    for fields in ({"matching": "code"}, {"matching": "paper", "match_lr": 0.3}):
        creff = method(match_steps=1, **fields)
        s = creff.init(model, server)
        found.append(parts(tiny.after(creff, s, replies(creff, s, model), server))[0])
    assert torch.allclose(found[0], found[1], atol=1e-4)


def test_the_head_depends_on_features_and_seed_only() -> None:
    creff, model = method(), identity()
    s = creff.init(model, server_of(model))
    features, _ = parts(s)
    heads = [
        creff.retrain(features, server_of(m, **fields))["1.weight"]
        for m, fields in ((model, {}), (identity(), {}), (model, {"seed": 1}))
    ]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
    assert not torch.equal(heads[0], creff.retrain(features + 1, server_of(model))["1.weight"])


def test_nobody_has_samples() -> None:
    creff, model = method(), identity()
    server = server_of(model)
    s = creff.init(model, server)
    new = tiny.after(creff, s, [replies(creff, s, model)[2]], server)
    assert torch.equal(parts(new)[0], parts(s)[0])
    assert torch.equal(new.model["1.weight"], s.model["1.weight"])
    assert server.logged == {}


@pytest.mark.parametrize("model", [tiny.plain_model, tiny.norm_model, tiny.dropout_model])
@pytest.mark.parametrize("fields", [{}, {"gradients": "augmented", "repeats": 2}])
def test_w_goes_the_way_of_fedavg(model: Any, fields: dict[str, Any]) -> None:
    local = tiny.quick(momentum=0.9)
    with_features = run(tiny.experiment(CReFF(local=local, **QUICK, **fields), model))
    plain = run(tiny.experiment(FedAvg(local=local), model))
    trained = with_features.state.model
    assert trained.keys() == plain.tensors.keys()
    assert all(torch.equal(trained[name], t) for name, t in plain.tensors.items())
    assert with_features.digest != plain.digest


def test_no_features_is_fedavg() -> None:
    # Also in what is sent: nothing is asked that nothing is made of.
    result = run(tiny.experiment(CReFF(local=tiny.quick(), features=0)))
    plain = run(tiny.experiment(FedAvg(local=tiny.quick())))
    for one, other in zip(result.history, plain.history, strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}
    assert result.digest == plain.digest


def test_dissimilarity_falls_over_rounds() -> None:
    creff = CReFF(local=tiny.quick(), features=20, match_steps=50, head_epochs=5)
    history = run(tiny.experiment(creff, rounds=5, per_round=6)).history
    found = [record["method"]["dissimilarity_after"] for record in history]
    assert found[-1] < found[0] < 1


def test_augmented_gradients_are_near_the_plain_ones() -> None:
    # One repeat of all samples of vectors, which have no augmentation, is the plain mean.
    creff, model = method(), identity()
    s = creff.init(model, server_of(model))
    plain = replies(creff, s, model)
    few = method(gradients="augmented", repeats=1, repeat_samples=32)
    for one, other in zip(plain, replies(few, s, model), strict=True):
        for name in ("grad/classes", "grad/weight", "grad/bias"):
            assert torch.allclose(one.payload.tensors[name], other.payload.tensors[name])
    # Repeats of one random sample of class 0 of client 1: each is one of two gradients.
    single = replies(method(gradients="augmented", repeats=1, repeat_samples=1), s, model)
    assert not torch.allclose(
        single[1].payload.tensors["grad/weight"], plain[1].payload.tensors["grad/weight"]
    )


def test_a_model_that_is_its_own_classifier() -> None:
    model = SplitModel(nn.Linear(2, 3))
    creff = method()
    s = creff.init(model, server_of(model))
    new = tiny.after(creff, s, replies(creff, s, model), server_of(model))
    assert set(parts(new)[1]) == {"weight", "bias"}


def test_other_heads_are_refused_before_work_starts() -> None:
    model = SplitModel(nn.Sequential(nn.Identity(), CosineHead(2, 3)), "1")
    with pytest.raises(FedtailError, match="linear classifier"):
        method().init(model, server_of(model))


def test_the_features_are_balanced_for_the_head() -> None:
    # Features that lie apart: after re-training each is given to its own class, tail or not.
    creff, model = method(head_lr=0.5, head_epochs=50), identity()
    corners = torch.tensor([[4.0, 0.0], [0.0, 4.0], [-4.0, -4.0]])[:, None].expand(3, 6, 2)
    head = creff.retrain(corners, server_of(model))
    z = functional.linear(corners[:, 0], *Head(head["1.weight"], head["1.bias"]))
    assert z.argmax(dim=1).tolist() == [0, 1, 2]
