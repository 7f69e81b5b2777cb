"""FedLoGe: a body under a fixed classifier, and heads on its features."""

from __future__ import annotations

import pytest
import tiny
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedtail import FedLoGe, FedtailError, run
from fedtail.methods.fedloge import realigned
from fedtail.models import SplitModel
from fedtail.protocol import Payload, grouped
from fedtail.training import LocalTraining
from fedtail.training.federated_features import Head

DATA = tiny.federation([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [0, 1, 0], [[0, 1, 2], [0]])


def trained_on(
    method: FedLoGe, base: SplitModel, k: int = 0
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return what client k sends after a round, and what it keeps."""
    model = method.build_model(base)
    tensors = {n: t for n, t in model.tensors().items() if not n.startswith("personal.")}
    client = tiny.client(DATA, k, model)
    payload = Payload(grouped("model", tensors), {"head": "auxiliary."})
    return dict(method.train(payload, client).tensors), dict(client.state)


def two_layers() -> SplitModel:
    torch.manual_seed(1)
    return SplitModel(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)))


def test_the_fixed_rows_are_of_one_length_and_not_sent() -> None:
    base = two_layers()
    model = FedLoGe(norm=0.1).build_model(base)
    rows = model.classifier.get_parameter("weight")
    torch.testing.assert_close(rows.norm(dim=1), torch.full((2,), 0.1))
    assert (rows == 0).sum(dim=1).tolist() == [2, 2]  # 0.6 of 3 is 1.8
    heads = {f"{h}.{n}" for h in ("auxiliary", "personal") for n in ("weight", "bias")}
    assert model.names() == {"0.weight", "0.bias", *heads}
    # The auxiliary head starts as the model's classifier.
    assert torch.equal(model.tensors()["auxiliary.weight"], base.tensors()["2.weight"])


def test_the_body_does_not_depend_on_the_heads() -> None:
    sent = []
    for shift in (0.0, 5.0):
        base = two_layers()
        with torch.no_grad():
            base.classifier.get_parameter("weight").add_(shift)
        sent.append(trained_on(FedLoGe(), base)[0])
    assert all(torch.equal(sent[0][n], sent[1][n]) for n in ("model/0.weight", "model/0.bias"))
    assert not torch.equal(sent[0]["model/auxiliary.weight"], sent[1]["model/auxiliary.weight"])


def test_on_a_frozen_body_the_auxiliary_head_is_softmax_regression() -> None:
    # Two steps over all three samples; by hand: the gradient of W is the mean of (p - e_y) hᵀ.
    base = SplitModel(nn.Sequential(nn.Identity(), nn.Linear(2, 2)))
    method = FedLoGe(local=LocalTraining(lr=0.5, steps=2, batch_size=3))
    weight, bias = (base.tensors()[f"1.{n}"] for n in ("weight", "bias"))
    x, y = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), torch.tensor([0, 1, 0])
    for _ in range(2):
        error = (x @ weight.T + bias).softmax(1) - functional.one_hot(y, 2)
        weight, bias = weight - 0.5 * error.T @ x / 3, bias - 0.5 * error.mean(0)
    sent, kept = trained_on(method, base)
    torch.testing.assert_close(sent["model/auxiliary.weight"], weight)
    torch.testing.assert_close(sent["model/auxiliary.bias"], bias)
    assert sent.keys() == {"model/auxiliary.weight", "model/auxiliary.bias"}
    assert float(kept["own/personal.weight"].norm()) > 0


def test_the_fixed_rows_are_as_asked_for() -> None:
    base = two_layers()
    plain = FedLoGe(sparsity=0, spread=False).build_model(base)
    rows = plain.classifier.get_parameter("weight")
    # Two unit vectors of a simplex are opposite.
    torch.testing.assert_close(rows @ rows.T, torch.tensor([[1.0, -1.0], [-1.0, 1.0]]))
    wide = SplitModel(nn.Linear(16, 5))
    spread = FedLoGe().build_model(wide).classifier.get_parameter("weight")
    left = FedLoGe(spread=False).build_model(wide).classifier.get_parameter("weight")
    assert torch.equal(spread == 0, left == 0)
    assert not torch.allclose(spread, left, atol=1e-3)


def test_realigned_rows_have_one_length_and_the_bias_stays() -> None:
    head = Head(torch.tensor([[3.0, 4.0], [0.0, 2.0]]), torch.tensor([0.5, -0.5]))
    found = realigned(head, 1.7)
    torch.testing.assert_close(found.weight, torch.tensor([[1.02, 1.36], [0.0, 1.7]]))
    assert found.bias is head.bias
    assert realigned(head, 0.0) is head
    # Without a bias the constant does not change who wins.
    h = torch.randn(20, 2)
    winners = [(h @ realigned(head, norm).weight.T).argmax(1) for norm in (0.1, 1.7, 30.0)]
    assert torch.equal(winners[0], winners[1])
    assert torch.equal(winners[1], winners[2])


@pytest.mark.parametrize("bias", [True, False])
def test_a_clients_own_model_by_hand(bias: bool) -> None:
    # Client 1 holds class 0 alone. ψ_0 = (3, 4), ‖φ_0‖ = 2: its row is (9, 12); class 1 is off.
    method = FedLoGe()
    model = method.build_model(SplitModel(nn.Sequential(nn.Identity(), nn.Linear(2, 2, bias=bias))))
    start = {"auxiliary.weight": torch.tensor([[3.0, 4.0], [1.0, 1.0]])}
    if bias:
        start["auxiliary.bias"] = torch.tensor([0.5, 0.25])
    own = Head(torch.tensor([[0.0, 2.0], [7.0, 7.0]]), torch.zeros(2) if bias else None)
    found = method.own(start, own, tiny.client(DATA, 1, model))
    assert found["1.weight"][0].tolist() == [9.0, 12.0]
    if bias:
        assert found["1.weight"][1].tolist() == [0.0, 0.0]
        assert found["1.bias"].tolist() == [0.5, -1e4]
    else:
        assert found["1.weight"][1].tolist() == [-1e4, -1e4]


def test_what_is_shipped_is_the_users_model_with_the_realigned_head() -> None:
    result = run(tiny.experiment(FedLoGe(local=tiny.quick())))
    assert result.tensors.keys() == {"1.weight", "1.bias", "3.weight", "3.bias"}
    torch.testing.assert_close(result.tensors["3.weight"].norm(dim=1), torch.full((4,), 1.7))
    assert torch.equal(result.tensors["3.bias"], result.state.model["auxiliary.bias"])


def test_more_classes_than_features_are_refused() -> None:
    with pytest.raises(FedtailError, match="as many features"):
        FedLoGe().build_model(SplitModel(nn.Linear(2, 3)))
