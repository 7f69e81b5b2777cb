"""Ratio Loss: R from what the classifier changes when the server trains on one class alone."""

from __future__ import annotations

from typing import Any

import pytest
import sizes
import tiny
import torch
from torch import Tensor, nn

from fedtail import FedAvg, FedtailError, LocalTraining, RatioLoss, WeightedCrossEntropy, run
from fedtail.data.federation import ServerData
from fedtail.methods.ratio_loss import RatioState, change_ratios, server_samples_by_class
from fedtail.models import SplitModel
from fedtail.models.heads import CosineHead
from fedtail.protocol import Payload, Server, Update

# One sample of class 0 at 2, one of class 1 at 1; nothing of class 2.
DATA = ServerData(torch.tensor([[1.0], [2.0]]), torch.tensor([1, 0]))
STEP = LocalTraining(lr=0.1, batch_size=4, epochs=7)


def linear(classes: int = 2) -> SplitModel:
    model = SplitModel(nn.Sequential(nn.Identity(), nn.Linear(1, classes, bias=False)))
    nn.init.zeros_(model.classifier.get_parameter("weight"))
    return model


def server_of(model: SplitModel, data: ServerData = DATA, **fields: Any) -> Server:
    return tiny.server(model, 2, **{"data": data, "num_classes": model.num_classes, **fields})


def test_ratios_of_changes_by_hand() -> None:
    # Entry by entry, largest first: (4, 1) is class 0's, since 1 is not above 0.8 · 4; (1, 3) and
    # (0, 2) are class 1's; of (-2, -1) the largest is -1, but 2 is above 0.8 · 1: nobody's.
    # R_0 = 4 / 1, R_1 = (3 + 2) / (1 + 0). The server has no sample of class 2: 10.
    changes = {
        0: torch.tensor([[4.0, 1.0], [-2.0, 0.0]]),
        1: torch.tensor([[1.0, 3.0], [-1.0, 2.0]]),
    }
    assert change_ratios(changes, 3).tolist() == [4.0, 5.0, 10.0]


def test_the_others_are_a_mean_over_classes() -> None:
    # Three classes: in the only entry the others change by 1 and 3, on average by 2.
    changes = {c: torch.tensor([[v]]) for c, v in enumerate((8.0, 1.0, 3.0))}
    assert change_ratios(changes, 3).tolist() == [4.0, 10.0, 10.0]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ((1.0, 0.9), 10.0),  # the other is above 0.8 of it: nothing stands out
        ((1.0, 0.75), 4 / 3),  # this is not
        ((1.0, -0.9), 10.0),  # nor does it matter which way the other goes
        ((1.0, 0.0), 10.0),  # nothing to divide by
        ((1.0, 1e-6), 5000.0),  # the cap
        ((1.0, -0.5), 2.0),
        ((0.0, -0.5), 0.0),  # the largest change is none
        ((0.0, 0.0), 10.0),
    ],
)
def test_edges_of_the_ratio(changes: tuple[float, float], expected: float) -> None:
    found = change_ratios({c: torch.tensor([[v]]) for c, v in enumerate(changes)}, 2)
    assert float(found[0]) == pytest.approx(expected)


def test_changes_by_hand() -> None:
    # From W = 0, p = 1/2. Class 0 at h = 2 has the gradient (-1/2, 1/2) · 2, class 1 at h = 1
    # (1/2, -1/2). One pass is one step of rate 0.1, though clients make seven epochs: ΔW^(0) is
    # (0.1, -0.1) and ΔW^(1) (-0.05, 0.05).
    model = linear()
    method = RatioLoss(local=STEP)
    found = method.changes(server_samples_by_class(DATA, 32), server_of(model))
    assert found[0][:, 0].tolist() == pytest.approx([0.1, -0.1])
    assert found[1][:, 0].tolist() == pytest.approx([-0.05, 0.05])
    # Entry 0 is class 0's: 0.1 / 0.05. Entry 1 is nobody's: 0.1 is above 0.8 · 0.05. So 2 and 10.
    assert method.ratios(server_of(linear())).tolist() == pytest.approx([2.0, 10.0])


def test_ratios_of_gradients_by_hand() -> None:
    # R_0 = |1 · (-1) / (1/2)| = 2, R_1 = |1 · (-1/2) / 1| = 1/2; the third class is unknown.
    method = RatioLoss(estimate="gradient")
    found = method.ratios(server_of(linear()))
    assert found.tolist() == pytest.approx([2.0, 0.5])
    # With three classes p = 1/3, and two of them known: row 0 of the gradients is -4/3 and 1/3,
    # row 1 is 2/3 and -2/3.
    found = method.ratios(server_of(linear(3)))
    assert found.tolist() == pytest.approx([4.0, 1.0, 10.0])


def test_a_feature_that_is_always_zero_is_left_out() -> None:
    model = SplitModel(nn.Sequential(nn.Identity(), nn.Linear(2, 2, bias=False)))
    nn.init.zeros_(model.classifier.get_parameter("weight"))
    data = ServerData(torch.tensor([[1.0, 0.0], [2.0, 0.0]]), DATA.y)
    found = RatioLoss(estimate="gradient").ratios(server_of(model, data))
    assert found.tolist() == pytest.approx([2.0, 0.5])
    none = ServerData(torch.zeros(2, 2), DATA.y)
    assert RatioLoss(estimate="gradient").ratios(server_of(model, none)).tolist() == [10.0, 10.0]


def test_the_servers_pass_is_clipped_as_the_clients_are() -> None:
    # At W = 0 the gradients are ∓h/2 in either row: of norm √2 for h = 2, and 1/√2 for h = 1.
    # Clipped to 0.1 they are as long as each other, and a step of 0.1 is 0.01 / √2 = 0.007071.
    model = linear()
    samples = server_samples_by_class(DATA, 1)
    found = RatioLoss(local=STEP.but(clip=0.1)).changes(samples, server_of(model))
    assert found[0][:, 0].tolist() == pytest.approx([0.007071, -0.007071], abs=1e-6)
    assert found[1][:, 0].tolist() == pytest.approx([-0.007071, 0.007071], abs=1e-6)


def test_so_many_samples_of_a_class() -> None:
    data = ServerData(torch.arange(6.0)[:, None], torch.tensor([0, 2, 0, 0, 2, 0]))
    found = server_samples_by_class(data, 3)
    assert {c: x[:, 0].tolist() for c, x in found.items()} == {0: [0.0, 2.0, 3.0], 2: [1.0, 4.0]}


def uploads(shift: float) -> list[Update]:
    w = torch.tensor([[shift], [0.0]])
    return [Update(k, Payload({"model/1.weight": w}, {"samples": 1})) for k in range(2)]


def test_weights_are_taken_at_the_model_that_was_sent() -> None:
    # α + β R with R = 2 and 10 as above, whatever the clients made of the model.
    model = linear()
    method = RatioLoss(local=STEP, alpha=0.5, beta=0.25)
    s = RatioState(model.tensors())
    for shift in (0.0, 9.0):
        server = server_of(model)
        new = tiny.after(method, s, uploads(shift), server)
        assert new.weights is not None
        assert new.weights.tolist() == pytest.approx([1.0, 3.0])
        assert float(new.model["1.weight"][0]) == shift
        assert server.logged == pytest.approx({"ratio_least": 2.0, "ratio_most": 10.0})


def test_round_one_has_no_weights_and_then_each_client_is_told_one_a_class() -> None:
    model = linear()
    method = RatioLoss(local=STEP)
    s = RatioState(model.tensors())
    assert set(method.broadcast(s, server_of(model)).tensors) == {"model/1.weight"}
    told = RatioState(model.tensors(), weights=torch.tensor([1.0, 2.0]))
    assert method.broadcast(told, server_of(model)).tensors["weights/classes"].tolist() == [1, 2]
    result = run(tiny.experiment(RatioLoss(local=tiny.quick()), server_per_class=2))
    plain = run(tiny.experiment(FedAvg(local=tiny.quick()), server_per_class=2))
    extra = [
        (a["bytes_down"] - b["bytes_down"], a["bytes_up"] - b["bytes_up"])
        for a, b in zip(result.history, plain.history, strict=True)
    ]
    assert extra == [(0, 0), (4 * 4 * 4, 0), (4 * 4 * 4, 0)]  # four clients, four classes


def test_clients_weigh_their_samples() -> None:
    # One step from W = 0 on h = 1 of class 0: the gradient (-1/2, 1/2) times the weight 3.
    data = tiny.federation([[1.0]], [0], [[0]])
    model = linear()
    payload = Payload(
        {"model/1.weight": model.tensors()["1.weight"], "weights/classes": torch.tensor([3.0, 1.0])}
    )
    method = RatioLoss(local=LocalTraining(lr=0.1, steps=1))
    sent = method.train(payload, tiny.client(data, 0, model)).tensors["model/1.weight"]
    assert sent[:, 0].tolist() == pytest.approx([0.15, -0.15])


@pytest.mark.parametrize("model", [tiny.plain_model, tiny.norm_model, tiny.dropout_model])
def test_beta_0_is_fedavg(model: Any) -> None:
    local = tiny.quick(momentum=0.9)
    result = run(tiny.experiment(RatioLoss(local=local, beta=0), model, server_per_class=2))
    plain = run(tiny.experiment(FedAvg(local=local), model, server_per_class=2))
    assert result.digest == plain.digest
    for one, other in zip(result.history, plain.history, strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}


@pytest.mark.parametrize("model", [tiny.norm_model, tiny.dropout_model])
def test_the_gradient_form_comes_to_its_end(model: Any) -> None:
    method = RatioLoss(local=tiny.quick(), estimate="gradient")
    result = run(tiny.experiment(method, model, server_per_class=2))
    weights: Tensor = result.state.weights
    assert bool(torch.isfinite(weights).all())
    assert float(weights[3]) == pytest.approx(2.0)  # nobody holds class 3, not even the server


def test_the_default_loss_and_another_classifier() -> None:
    assert RatioLoss().loss == WeightedCrossEntropy()
    model = SplitModel(nn.Sequential(nn.Identity(), CosineHead(2, 3)), "1")
    with pytest.raises(FedtailError, match="linear classifier"):
        RatioLoss().build_model(model)


def test_what_others_change_is_not_copied_for_each_class() -> None:
    # 40 classes, all with an entry of their own: 40 changes of 1,600 numbers are 64,000, which are
    # looked at a few times. A copy for each class would be 40 times as many.
    changes = {c: torch.zeros(40, 40).index_fill_(0, torch.tensor([c]), 1.0) for c in range(40)}
    assert sizes.made(lambda: change_ratios(changes, 40)).total < 20 * 64_000
