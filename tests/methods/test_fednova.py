"""FedNova by hand: clients with unequal steps."""

from __future__ import annotations

from typing import Any

import pytest
import tiny
import torch
from torch import Tensor, nn

from fedtail import FedAvg, FedNova, FedProx, FedtailError, LocalTraining, ServerSGD, run
from fedtail.losses import LocalLoss, LossContext
from fedtail.methods import ModelState
from fedtail.models import Output, SplitModel
from fedtail.protocol import Payload, Update, grouped

# Client 0 has one sample (one step an epoch), client 1 three (three steps); x = 1 throughout.
DATA = tiny.federation([[1.0]] * 4, [0, 1, 1, 1], [[0], [1, 2, 3]])
SINGLE = LocalTraining(lr=0.5, batch_size=1)


class Sloped(LocalLoss):
    """8 z_0 for class 0, -8 z_0 for class 1: constant gradients of 8 and -8."""

    def __call__(self, output: Output, y: Tensor, context: LossContext) -> Tensor:
        return (output.logits[:, 0] * torch.where(y == 0, 8.0, -8.0)).mean()


def linear() -> SplitModel:
    model = SplitModel(nn.Sequential(nn.Linear(1, 2, bias=False)))
    nn.init.zeros_(model.module.get_parameter("0.weight"))
    return model


def one_round(
    method: FedAvg[ModelState], start: float = 0.0
) -> tuple[float, list[Update], dict[str, Any]]:
    """Return the trained weight after one round from `start`."""
    model = linear()
    server = tiny.server(model, 2)
    state = ModelState({"0.weight": torch.full((2, 1), start)})
    payload = method.broadcast(state, server)
    updates = [Update(k, method.train(payload, tiny.client(DATA, k, model))) for k in (0, 1)]
    new = tiny.after(method, state, updates, server)
    return float(new.model["0.weight"][0]), updates, server.logged


@pytest.mark.parametrize("start", [0.0, 4.0])
def test_unequal_steps_by_hand(start: float) -> None:
    # η = 1/2. Client 0: 1 step of -4, w_0 = -4, a_0 = 1. Client 1: 3 steps of 4, w_1 = 12, a_1 = 3.
    # d = (8, -8), p = (1/4, 3/4), τ_eff = 1/4 + 9/4 = 5/2:
    # w - (5/2)(1/2)(8/4 - 3 · 8/4) = w + 5. FedAvg would go to w + (-4 + 3 · 12)/4 = w + 8.
    found, updates, logged = one_round(FedNova(local=SINGLE, loss=Sloped()), start)
    assert found == pytest.approx(start + 5.0)
    # n_k = (1, 3): n_k / a_k and n_k a_k.
    assert [u.payload.scalars["share"] for u in updates] == [1.0, 1.0]
    assert [u.payload.scalars["work"] for u in updates] == [1.0, 9.0]
    assert logged["tau_eff"] == pytest.approx(2.5)
    assert one_round(FedAvg(local=SINGLE, loss=Sloped()), start)[0] == start + 8


def test_unequal_steps_with_momentum_by_hand() -> None:
    # ρ = 1/2: a_0 = 1, a_1 = 1 + 3/2 + 7/4 = 17/4, w_1 = 4 · 17/4 = 17. d = (8, -8) again,
    # τ_eff = 1/4 + 51/16 = 55/16: w = (55/16)(1/2)(4) = 55/8.
    found, updates, _ = one_round(FedNova(local=SINGLE.but(momentum=0.5), loss=Sloped()))
    assert [u.payload.scalars["work"] for u in updates] == [1.0, 3 * 4.25]
    assert float(updates[1].payload.tensors["model/0.weight"][0]) == 17
    assert found == pytest.approx(55 / 8)


def test_unequal_steps_with_a_proximal_term_by_hand() -> None:
    # μ = 1/2, α = ημ = 1/4: a_0 = 1, a_1 = 1 + 3/4 + 9/16 = 37/16, w_1 = 4 · 37/16 = 37/4.
    # τ_eff counts steps: 1/4 + 9/4 = 5/2, and d = (8, -8): w = 5, as without the term.
    found, updates, _ = one_round(FedNova(local=SINGLE, loss=Sloped(), mu=0.5))
    assert updates[1].payload.scalars["share"] == pytest.approx(3 / (37 / 16), rel=1e-12)
    assert float(updates[1].payload.tensors["model/0.weight"][0]) == 37 / 4
    assert found == pytest.approx(5.0)


@pytest.mark.parametrize("model", [tiny.plain_model, tiny.norm_model, tiny.dropout_model])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_equal_steps_are_fedavg_up_to_rounding(model: Any, momentum: float) -> None:
    local = tiny.quick(steps=3, momentum=momentum, weight_decay=0.01, clip=1.0)
    plain = run(tiny.experiment(FedAvg(local=local), model))
    equal = run(tiny.experiment(FedNova(local=local), model))
    for name, tensor in plain.tensors.items():
        torch.testing.assert_close(equal.tensors[name], tensor, rtol=0, atol=1e-6)
    epochs = tiny.quick(momentum=momentum)
    unequal = run(tiny.experiment(FedNova(local=epochs), model))
    assert unequal.digest != run(tiny.experiment(FedAvg(local=epochs), model)).digest


def test_the_local_half_is_that_of_fedprox() -> None:
    payload = Payload(grouped("model", linear().tensors()))
    local = LocalTraining(lr=0.5, steps=4)
    one, other = (
        kind(local=local, mu=0.5).train(payload, tiny.client(DATA, 1, linear()))
        for kind in (FedNova, FedProx)
    )
    assert torch.equal(one.tensors["model/0.weight"], other.tensors["model/0.weight"])


def test_statistics_take_the_average_of_fedavg() -> None:
    # Directions of variances could make them negative: with 1 and 3 steps, FedNova's rule would
    # give running_var 4 + (5/2) ((1/4)(0.1 - 4) + (3/4)(0.1 - 4)/3) < 0; the average is 0.1.
    model = SplitModel(nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 2, bias=False)))
    server = tiny.server(model, 2)
    old = {**model.tensors(), "0.running_var": torch.full((1,), 4.0)}
    sent = {**old, "0.running_var": torch.full((1,), 0.1), "0.num_batches_tracked": torch.tensor(3)}
    updates = [
        Update(
            k,
            Payload(
                grouped("model", sent), {"samples": n, "share": float(n > 0), "work": float(n * n)}
            ),
        )
        for k, n in ((0, 1), (1, 3))
    ]
    state = tiny.after(FedNova(), ModelState(old), updates, server)
    assert 4 + 2.5 * ((0.1 - 4) / 4 + (0.1 - 4) / 4) < 0
    assert float(state.model["0.running_var"]) == pytest.approx(0.1)
    assert int(state.model["0.num_batches_tracked"]) == 3


def test_momentum_on_the_server_comes_after() -> None:
    # The first step of a momentum buffer is the step itself: half of 5.
    method = FedNova(local=SINGLE, loss=Sloped(), server_optimizer=ServerSGD(lr=0.5, momentum=0.9))
    assert one_round(method)[0] == pytest.approx(2.5)


def test_a_client_without_samples_weighs_nothing() -> None:
    model = linear()
    server = tiny.server(model, 2)
    state = ModelState(model.tensors())

    def update(k: int, n: int, value: float) -> Update:
        tensors = {"model/0.weight": torch.full((2, 1), value)}
        return Update(
            k, Payload(tensors, {"samples": n, "share": float(n > 0), "work": float(n * n)})
        )

    new = tiny.after(FedNova(), state, [update(0, 0, 9.0), update(1, 2, 3.0)], server)
    assert new.model["0.weight"].flatten().tolist() == [3.0, 3.0]
    assert tiny.after(FedNova(), state, [update(0, 0, 9.0)], server) is state


def test_adam_is_refused() -> None:
    with pytest.raises(FedtailError, match=r"'fednova' counts steps of sgd"):
        FedNova(local=LocalTraining(optimizer="adam"))


def test_a_pull_that_overshoots_is_refused() -> None:
    with pytest.raises(FedtailError, match=r"mu = 2 is too large: from 1 / lr"):
        FedNova(local=LocalTraining(lr=0.5), mu=2.0)
