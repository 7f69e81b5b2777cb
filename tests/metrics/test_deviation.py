"""FedLC's deviation bound: by hand, its Theorem 3 in two forms, and as a metric of any method."""

from __future__ import annotations

import math
from typing import Any

import pytest
import sizes
import tiny
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedtail import BSM, FedAvg, FedETF, FedLC, GlobalPrior, LogitCalibration, LossContext, run
from fedtail.losses import BalancedSoftmax
from fedtail.metrics import deviating, deviation_bound, printed_bound
from fedtail.models import SplitModel
from fedtail.protocol import Payload, grouped


def test_by_hand() -> None:
    # Class 0 has the sample (1, 0), class 1 the samples (2, 0) and (2, 2), mean (2, 1); p = 1/2.
    # D_10 = 1/2 · 1 / (1/2 · 2) = 1/2, D_01 = 1/2 · 5 / (1/2 · 2) = 5/2. With 2 samples against 1
    # the ratio for the rare class 0 is 2 / (1/2) = 4: it deviates.
    h, y = torch.tensor([[1.0, 0.0], [2.0, 0.0], [2.0, 2.0]]), torch.tensor([0, 1, 1])
    bound = deviation_bound(h, y, torch.full((3, 2), 0.5))
    assert float(bound[1, 0]) == pytest.approx(0.5)
    assert float(bound[0, 1]) == pytest.approx(2.5)
    found = deviating(bound, torch.tensor([1, 2]))
    assert (found.pairs, found.deviating, found.finite) == (1, 1, 1)
    assert found.log_ratio == pytest.approx(math.log(4))
    # Two against two: no class is rarer.
    assert deviating(bound, torch.tensor([2, 2])).pairs == 0


def test_probabilities_are_means_over_the_class() -> None:
    # One feature 1: D_10 = (1 − p̄_0^(0)) / p̄_0^(1) = (1 − 3/4) / ((0.1 + 0.3) / 2) = 5/4, and
    # n_1 / n_0 = 2 is above it.
    p = torch.tensor([[0.75, 0.25], [0.1, 0.9], [0.3, 0.7]])
    bound = deviation_bound(torch.ones(3, 1), torch.tensor([0, 1, 1]), p)
    assert float(bound[1, 0]) == pytest.approx(1.25)
    assert deviating(bound, torch.tensor([1, 2])).log_ratio == pytest.approx(math.log(1.6))


def test_where_it_is_not_defined() -> None:
    # Features of class 2 point away from those of class 0, class 3 has no samples, and class 1 has
    # no probability on samples of class 0: that bound is infinite, and nothing deviates.
    h = torch.tensor([[1.0], [1.0], [1.0], [-1.0]])
    y = torch.tensor([0, 0, 1, 2])
    p = torch.tensor([[0.5, 0.0, 0.5, 0.0]] * 2 + [[0.25, 0.25, 0.25, 0.25]] * 2)
    bound = deviation_bound(h, y, p)
    assert math.isinf(float(bound[0, 1]))
    assert bool(bound[0, 2].isnan()) and bool(bound[:, 3].isnan().all())
    found = deviating(bound, torch.tensor([2, 1, 1, 0]))
    assert (found.pairs, found.deviating, found.finite) == (1, 0, 0)


def cloud(counts: list[int], seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return features that are not negative, labels, and logits of a random head."""
    g = torch.Generator().manual_seed(seed)
    y = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    h = torch.randn(len(y), 5, generator=g).relu() + functional.one_hot(y, 5)
    return h, y, h @ torch.randn(5, len(counts), generator=g) * 0.3


@pytest.mark.parametrize("tau", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("seed", range(3))
def test_with_the_exponential_theorem_3_is_definition_3(tau: float, seed: int) -> None:
    # Σ_{y≠r} e^Δ_ry p̃_y = e^m_r (1 − q_r) and p̃_r = e^m_r q_r, with the calibrated softmax q.
    counts = torch.tensor([20, 9, 4, 1])
    h, y, f = (t.double() if t.is_floating_point() else t for t in cloud(counts.tolist(), seed))
    context = LossContext(counts.double(), counts.double(), 1, 1)
    q = LogitCalibration(tau=tau).adjusted(f, context).softmax(dim=1)
    m = tau * counts.double().pow(-0.25)
    p = f.exp() / (f - m).exp().sum(dim=1, keepdim=True)
    own = functional.one_hot(y, 4).double() / counts
    p_mean, h_mean = own.T @ p, own.T @ h
    apart = ((m[:, None] - m).exp() * p_mean).masked_fill(torch.eye(4).bool(), 0).sum(dim=1)
    alike = h_mean @ h_mean.T
    expected = apart * alike.diagonal() / (p_mean * alike)
    torch.testing.assert_close(deviation_bound(h, y, q), expected)


def test_as_printed_theorem_3_says_nothing_without_margins() -> None:
    # Class 0 has one sample, class 1 sixteen: m = τ (1, 1/2), Δ_01 = τ/2, and with τ = 2 ln 3 and
    # f = 0, Σ_i e^(−m_i) = 1/9 + 1/3 and p̃ = 9/4 for both: D_10 = ln 3 · (9/4) / (9/4) = ln 3.
    # The rare class as the frequent one gives −ln 3. Without margins all are 0.
    h, y, f = torch.ones(17, 1), torch.tensor([0] + [1] * 16), torch.zeros(17, 2)
    m = 2 * math.log(3) * torch.tensor([1.0, 0.5])
    printed = printed_bound(h, y, f, m)
    assert float(printed[1, 0]) == pytest.approx(math.log(3))
    assert float(printed[0, 1]) == pytest.approx(-math.log(3))
    assert torch.equal(printed_bound(h, y, f, 0 * m), torch.zeros(2, 2).double())
    # Definition 3 under the calibrated softmax (1/4, 3/4): (3/4) / (1/4) = 3.
    q = (f - m).softmax(dim=1)
    assert float(deviation_bound(h, y, q)[1, 0]) == pytest.approx(3)


def test_calibration_raises_the_bound_of_the_rarest() -> None:
    # Its probability falls at every sample, so that 1 − p̄ rises and p̄ on others falls.
    counts = torch.tensor([20, 9, 4, 1])
    h, y, f = cloud(counts.tolist(), 0)
    context = LossContext(counts.float(), counts.float(), 1, 1)
    last = deviation_bound(h, y, f.softmax(dim=1))[:3, 3]
    for tau in (0.5, 1.0, 4.0):
        p = LogitCalibration(tau=tau).adjusted(f, context).softmax(dim=1)
        now = deviation_bound(h, y, p)[:3, 3]
        assert bool((now > last).all())
        last = now


# As a metric


@pytest.mark.parametrize(
    "method",
    [
        FedAvg(local=tiny.quick()),
        FedLC(local=tiny.quick()),
        BSM(local=tiny.quick(), prior=GlobalPrior()),
    ],
    ids=lambda method: method.name,
)
@pytest.mark.parametrize("model", [tiny.plain_model, tiny.norm_model])
def test_measuring_changes_nothing(method: Any, model: Any) -> None:
    plain, watched = (run(tiny.experiment(method, model, deviation=on)) for on in (False, True))
    assert watched.digest == plain.digest
    for record, bare in zip(watched.history, plain.history, strict=True):
        assert record["bytes_up"] == bare["bytes_up"]
        assert 0 <= record["method"]["deviation_share"] <= 1
        assert record["method"]["deviation_ratio"] > 0
        assert not bare["method"]


@pytest.mark.parametrize("told", [None, torch.tensor([1.0, 3.0])])
def test_the_softmax_is_that_of_the_loss(told: Tensor | None) -> None:
    # One feature 1, a head of zeros, one sample of class 0 and four of class 1. With the client's
    # own prior p = (1/5, 4/5): D_10 = (4/5) / (1/5) = 4 = n_1 / n_0, ratio 1. With (1, 3) / 4 it is
    # 3, and the ratio 4/3.
    model = tiny.spare_model()
    model.load({**model.tensors(), "0.weight": torch.zeros(2, 1)})
    data = tiny.federation([[1.0]] * 5, [0, 1, 1, 1, 1], [range(5)])
    prior = {} if told is None else {"prior/counts": told}
    payload = Payload({**grouped("model", model.tensors()), **prior})
    method = BSM(prior=GlobalPrior())
    sent = method.count_deviation(payload, tiny.client(data, 0, model)).group("deviation")
    assert int(sent["pairs"]) == 1
    expected = 0.0 if told is None else math.log(4 / 3)
    assert float(sent["log_ratio"]) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("absent", "ratio"), [("one", 4 / 5), ("mask", 1.0)])
def test_the_prior_is_that_of_training(absent: str, ratio: float) -> None:
    # Features 1, logits 0; 1, 4 and 0 samples. FedETF counts the absent class as one sample, so
    # that p = (1, 4, 1) / 6 and D_10 = (5/6) / (1/6) = 5; masked, p = (1, 4, 0) / 5 and D_10 = 4.
    method = FedETF.model_validate({"name": "fedetf", "absent": absent})
    model = method.build_model(SplitModel(nn.Sequential(nn.Linear(1, 3))))
    model.load({name: torch.zeros_like(t) for name, t in model.tensors().items()})
    data = tiny.federation([[1.0]] * 5, [0, 1, 1, 1, 1], [range(5)], classes=3)
    payload = Payload(grouped("model", model.tensors()))
    sent = method.count_deviation(payload, tiny.client(data, 0, model)).group("deviation")
    assert float(sent["log_ratio"]) == pytest.approx(math.log(ratio), abs=1e-6)


def test_privacy_does_not_cover_it() -> None:
    private = {"privacy": {"epsilon": 5.0, "clip": 1.0, "simulated": True}, "deviation": True}
    with pytest.raises(ValueError, match="deviation asks clients"):
        tiny.experiment(FedAvg(local=tiny.quick()), tiny.plain_model, **private)


def test_losses_without_margins_leave_logits_alone() -> None:
    z, context = torch.tensor([[1.0, 2.0]]), LossContext(torch.ones(2), torch.ones(2), 1, 1)
    assert FedAvg().loss.adjusted(z, context) is z
    assert BalancedSoftmax(tau=0).adjusted(z, context) is z


def test_classes_that_a_client_lacks_cost_it_no_pairs() -> None:
    # A client with two of 2,000 classes: its probabilities are 3 · 2,000, pairs of all 4,000,000.
    model = SplitModel(nn.Sequential(nn.Linear(1, 2000)))
    data = tiny.federation([[1.0]] * 3, [5, 5, 1000], [range(3)], classes=2000)
    payload = Payload(grouped("model", model.tensors()))
    client = tiny.client(data, 0, model)
    method: Any = FedAvg()
    assert int(method.count_deviation(payload, client).group("deviation")["pairs"]) == 1
    assert sizes.made(lambda: method.count_deviation(payload, client)).largest <= 6000
