"""FedNPC: the classifier, trained on noise."""

from __future__ import annotations

import inspect
import math

import pytest
import sizes
import tiny
import torch
from torch import nn

from fedtail import FedAvg, FedNPC, FedtailError, ModelState, run
from fedtail.methods import fednpc
from fedtail.methods.fednpc import noise_step
from fedtail.models import CosineHead, SplitModel
from fedtail.protocol import Scalar
from fedtail.training.classifier import unnamed
from fedtail.training.federated_features import Head


def finished(
    method: FedNPC, model: SplitModel, seed: int = 0
) -> tuple[dict[str, torch.Tensor], dict[str, Scalar]]:
    """Return what is tested, and what is logged."""
    server = tiny.server(model, 1, seed=seed, num_classes=model.num_classes)
    exchange = method.finalize(ModelState(model.tensors()), server)
    with pytest.raises(StopIteration) as end:
        next(exchange)
    return end.value.value.model, server.logged


def uneven(bias: bool = True) -> SplitModel:
    """Return five orthogonal rows of length 4, 2, 1, 1, 1, and a bias of 3 for the first class."""
    head = nn.Linear(32, 5, bias=bias)
    with torch.no_grad():
        head.weight.copy_(torch.eye(5, 32) * torch.tensor([4.0, 2, 1, 1, 1])[:, None])
        if bias:
            head.bias.copy_(torch.tensor([3.0, 0, 0, 0, 0]))
    return SplitModel(nn.Sequential(nn.Identity(), head))


def test_one_step_by_hand() -> None:
    # Features 1 and -1 of class 0, W = 0, b = (ln 3, 0): p = (3/4, 1/4), error (-1/4, 1/4) each.
    # The gradient of W is the mean of error · h = 0, of b (-1/4, 1/4); rate 2.
    head = Head(torch.zeros(2, 1), torch.tensor([3.0, 1.0]).log())
    path = FedNPC(steps=2, noise_lr=2.0, noise_momentum=0.5).path(
        head, torch.tensor([[1.0], [-1.0]]), torch.tensor([0, 0])
    )
    assert [p.steps for p in path] == [0, 1, 2]
    bias = path[1].head.bias
    assert bias is not None
    torch.testing.assert_close(bias, torch.tensor([1.0986 + 0.5, -0.5]), atol=1e-4, rtol=0)
    assert torch.equal(path[1].head.weight, torch.zeros(2, 1))
    # Step 2: z = 2.098612, p_1 = 1 - s = 0.109242; v = 0.5 (-1/4) - 0.109242 = -0.234242.
    second = path[2].head.bias
    assert second is not None
    assert float(second[0]) == pytest.approx(1.598612 + 2 * 0.234242, abs=1e-4)


def test_no_step_is_fedavg() -> None:
    found = run(tiny.experiment(FedNPC(local=tiny.quick(), steps=0)))
    assert found.digest == run(tiny.experiment(FedAvg(local=tiny.quick()))).digest


def test_the_spread_by_hand() -> None:
    # Rows (3), (0), (0) less their mean 1: lengths 2, 1, 1, logarithms ln 2, 0, 0, whose standard
    # deviation is ln 2 · √2/3. A bias that all have in common is nothing.
    head = Head(torch.tensor([[3.0], [0.0], [0.0]]), torch.full((3,), 7.0))
    found = noise_step(0, head, head)
    assert found.spread == pytest.approx(math.log(2) * math.sqrt(2) / 3, rel=1e-5)
    assert found.cosine == 1.0
    # What differs between biases counts as a column of the rows does.
    biased = Head(torch.full((3, 1), 2.0), torch.tensor([3.0, 0.0, 0.0]))
    assert noise_step(0, biased, head).spread == pytest.approx(found.spread, rel=1e-5)
    # (1), (0), (-1) beside the same: (2, -1, -1) and (1, 0, -1) have the cosine 3/√12.
    other = noise_step(4, Head(torch.tensor([[1.0], [0.0], [-1.0]]), None), head)
    assert other.cosine == pytest.approx(3 / math.sqrt(12), rel=1e-5)


def test_it_stops_where_rows_are_most_alike() -> None:
    model = uneven()
    method = FedNPC(keep=-1.0)
    path = method.path(
        Head(*(model.tensors()[f"1.{n}"] for n in ("weight", "bias"))),
        torch.randn(4000, 32, generator=torch.Generator().manual_seed(0)),
        torch.randint(5, (4000,), generator=torch.Generator().manual_seed(1)),
    )
    spreads = [p.spread for p in path]
    best = min(range(len(path)), key=spreads.__getitem__)
    assert 0 < best < 27  # less, and then more again: an overshoot
    assert spreads[best] < spreads[0] / 2 < spreads[-1]
    tested, logged = finished(method, model)
    assert 0 < int(str(logged["noise_steps"])) < 27
    now = noise_step(1, unnamed(tested, model), unnamed(model.tensors(), model))
    assert now.spread < spreads[0] / 2


@pytest.mark.parametrize("common", [0.0, 100.0])
def test_of_two_classes_nothing_is_changed(common: float) -> None:
    # Less their mean, two rows are v and −v: of one length after any step, but for rounding.
    for seed in range(8):
        draw = torch.Generator().manual_seed(seed)
        model = SplitModel(nn.Sequential(nn.Identity(), nn.Linear(64, 2)))
        rows = 0.2 * torch.randn(2, 64, generator=draw) + common * torch.randn(64, generator=draw)
        model.load({"1.weight": rows, "1.bias": torch.tensor([3.0, -3.0])})
        tested, logged = finished(FedNPC(noise=2000), model, seed)
        assert logged["noise_steps"] == 0
        assert torch.equal(tested["1.weight"], rows)


def test_the_classifier_points_where_it_did() -> None:
    model = uneven()
    start = unnamed(model.tensors(), model)
    for keep in (0.99, 0.9, 0.5):
        tested, logged = finished(FedNPC(steps=60, keep=keep), model)
        cosine = noise_step(1, unnamed(tested, model), start).cosine
        assert cosine >= keep
        assert logged["noise_cosine"] == pytest.approx(cosine, abs=1e-6)
    same = finished(FedNPC(keep=1.0), model)[0]
    assert torch.equal(same["1.weight"], model.tensors()["1.weight"])


def test_many_steps_take_everything_that_tells_classes_apart() -> None:
    tested, logged = finished(FedNPC(stop="steps", steps=600), uneven(bias=False))
    rows = tested["1.weight"]
    # Of √17.6 before; chance labels of 10,000 samples leave √(4 · 5 · 32 / 10,000) or so.
    assert float((rows - rows.mean(dim=0)).norm()) < 0.6
    assert logged["noise_steps"] == 600
    assert tested.keys() == {"1.weight"}


def test_the_noise_is_the_rounds_own_and_no_data_is_seen() -> None:
    model, method = uneven(), FedNPC(stop="steps", steps=3)
    first = finished(method, model)[0]["1.weight"]
    assert torch.equal(first, finished(method, model)[0]["1.weight"])
    assert not torch.equal(first, finished(method, model, seed=1)[0]["1.weight"])
    # Neither a test set nor the server's samples are within its reach.
    assert "data" not in inspect.getsource(fednpc.FedNPC.finalize)
    assert FedNPC.server_data == "none"


def test_training_is_fedavgs() -> None:
    found = run(tiny.experiment(FedNPC(local=tiny.quick(), noise=50)))
    plain = run(tiny.experiment(FedAvg(local=tiny.quick())))
    assert all(torch.equal(found.state.model[n], t) for n, t in plain.tensors.items())


def test_another_classifier_is_refused() -> None:
    with pytest.raises(FedtailError, match="linear classifier"):
        FedNPC().build_model(SplitModel(nn.Sequential(nn.Identity(), CosineHead(2, 2)), "1"))


def test_many_classes_need_no_table_of_them() -> None:
    # 3,000 classes, 10 features of noise: 30,000 logits. A table of classes has 9,000,000 numbers.
    h, y = torch.ones(10, 2), torch.arange(10)
    head = Head(torch.zeros(3000, 2), torch.zeros(3000))
    assert sizes.made(lambda: FedNPC(steps=1).path(head, h, y)).largest <= 30_000
