"""Losses, priors, experts and methods in all combinations that the papers' tables have.

GBME's Table 3 puts LDAM, BSM, LADE, RIDE and PaCo under a local, a global and an estimated prior;
its Table 10 puts LDAM and BSM into experts. All of it runs on the digits, and what reaches the loss
is what the formula says.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import tiny
import torch
from method_needs import make_method
from torch import Tensor
from torch.nn import functional

from fedtail import (
    GBME,
    Experiment,
    Exponential,
    FedAvg,
    LocalLoss,
    LossContext,
    Method,
    ProxyPrior,
    Result,
    run,
)
from fedtail.losses import BalancedSoftmax, LDAMLoss, RIDELoss
from fedtail.models import ExpertModel, Output
from fedtail.setting import prepare

PRIORS = ("local", "global", "proxy")
LOSSES = ("ldam", "balanced_softmax", "lade", "ride", "paco")


def digits(method: Method[Any], **fields: Any) -> Experiment:
    """Return two short rounds of a small network on a long tail of digits."""
    chosen: dict[str, Any] = {
        "model": {"name": "mlp", "hidden": [16, 16]},
        "tail": Exponential(imbalance=20),
        "clients": 4,
        "rounds": 2,
        "eval_every": 2,
        "device": "cpu",
    }
    return Experiment(method=method, **{**chosen, **fields})


def short(**fields: Any) -> dict[str, Any]:
    """Return fields of a method that trains for two batches."""
    return {"local": {"steps": 2, "batch_size": 16, "lr": 0.05}, **fields}


def sound(result: Result) -> bool:
    """Tell whether all numbers are finite, and nobody was left out."""
    finite = all(bool(torch.isfinite(t).all()) for t in result.tensors.values())
    return finite and all(not record["dropped"] for record in result.history)


class Spy(LocalLoss):
    """Cross-entropy that writes down what it is told."""

    told: ClassVar[list[tuple[Tensor, Tensor]]] = []

    def __call__(self, output: Output, y: Tensor, context: LossContext) -> Tensor:
        self.told.append((context.counts, context.prior))
        return functional.cross_entropy(output.logits, y)


def spied(prior: str) -> tuple[list[tuple[Tensor, Tensor]], Any, Experiment]:
    """Run FedAvg; return each step's own counts and prior, and the result."""
    Spy.told.clear()
    chosen = digits(FedAvg(loss=Spy(), **short(prior=prior)))
    result = run(chosen.but(together=0))  # in a block it would be told of all at once
    assert len(Spy.told) == 2 * 4 * 2
    return list(Spy.told), result, chosen


def test_a_local_prior_is_the_clients_own_counts() -> None:
    told, _, _ = spied("local")
    assert all(torch.equal(counts, prior) for counts, prior in told)
    assert len({tuple(counts.tolist()) for counts, _ in told}) == 4


def test_a_global_prior_is_the_sum_of_all_counts() -> None:
    told, _, chosen = spied("global")
    whole = prepare(chosen).federation.class_counts().float()
    assert all(torch.equal(prior, whole) for _, prior in told)
    four = {tuple(counts.tolist()) for counts, _ in told}
    assert torch.equal(torch.tensor([list(c) for c in four]).sum(dim=0), whole)


def test_a_proxy_prior_is_the_servers_estimate() -> None:
    told, result, chosen = spied("proxy")
    estimate = result.state.prior
    assert all(torch.equal(prior, estimate) for _, prior in told)
    samples = float(prepare(chosen).federation.class_counts().sum())
    assert float(estimate.sum()) == pytest.approx(samples, rel=1e-5)
    assert bool((estimate > 0).all())


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("loss", LOSSES)
def test_every_prior_based_loss_trains_under_every_prior(loss: str, prior: str) -> None:
    method: FedAvg[Any] = FedAvg.model_validate({"loss": loss, **short(prior=prior)})
    assert sound(run(tiny.experiment(method, rounds=2)))


@pytest.mark.parametrize("name", ["ldam", "bsm", "lade", "ride", "paco"])
def test_table_3_the_prior_changes_what_is_learnt(name: str) -> None:
    methods: list[Method[Any]] = [
        Method.model_validate({"name": name, **short(prior=prior)}) for prior in PRIORS
    ]
    results = [run(digits(method)) for method in methods]
    assert all(sound(result) for result in results)
    assert len({result.digest for result in results}) == 3


@pytest.mark.parametrize("loss", [LDAMLoss(), BalancedSoftmax()])
@pytest.mark.parametrize("per_expert", [False, True])
def test_table_10_experts_with_ldam_and_balanced_softmax(loss: LocalLoss, per_expert: bool) -> None:
    method = GBME.model_validate(
        short(loss=loss, experts=2, per_expert=per_expert, cosine=True, prior=ProxyPrior())
    )
    assert sound(run(digits(method)))


@pytest.mark.parametrize("base", [LDAMLoss(drw_start=0), BalancedSoftmax()])
def test_table_10_experts_together_are_the_sum_of_their_losses(base: LocalLoss) -> None:
    # One client with everything and one step: the sum of the experts' own losses, GBME's
    # `per_expert` with all experts at once, is RIDE's loss without diversity, bit by bit.
    fields = short(experts=2, cosine=False, prior="global")
    joint = {"per_expert": True, "joint": 1.0, "grouping": "random", "loss": base}
    summed = GBME.model_validate({**fields, **joint})
    apart: Method[Any] = Method.model_validate(
        {"name": "ride", **fields, "loss": RIDELoss(base=base, diversity=0)}
    )
    one, other = (run(digits(method, clients=1)) for method in (summed, apart))
    assert one.digest == other.digest


def test_an_expert_model_under_ldam_sees_the_margins_of_the_formula() -> None:
    # CE(z - 30 · 0.5 (n_min / n_y)^(1/4) e_y) of the mean logits of an expert model.
    model = tiny.plain_model()
    chosen = RIDELoss(base=LDAMLoss(drw=False), diversity=0)
    made = Method.model_validate({"name": "ride", "experts": 2}).build_model(
        prepare(tiny.experiment(model=lambda: model)).base
    )
    assert isinstance(made, ExpertModel)
    x, y = torch.randn(6, *tiny.IMAGE), torch.tensor([0, 1, 2, 0, 1, 0])
    n = torch.tensor([21.0, 13.0, 8.0, 0.0])
    output = made.output(x)
    assert output.experts is not None
    counted = torch.where(n > 0, n, 0.1)
    shift = 15 * (0.1 / counted) ** 0.25 * functional.one_hot(y, 4)
    expected = torch.stack([functional.cross_entropy(z - shift, y) for z in output.experts]).sum()
    torch.testing.assert_close(chosen(output, y, LossContext(n, n, 1, 3)), expected)


@pytest.mark.parametrize("loss", list(LocalLoss.registry))
@pytest.mark.parametrize("name", ["balancefl", "creff", "fedprox", "gbme", "redgrape", "scaffold"])
def test_every_loss_goes_with_other_methods(name: str, loss: str) -> None:
    # BalanceFL hands over logits of -∞, GBME those of experts, RedGrape sums of two heads.
    method = make_method(name).but(loss=loss)
    assert sound(run(tiny.experiment(method, tiny.norm_model, rounds=1)))


def test_experts_that_learn_apart_see_one_experts_logits() -> None:
    # GBME's per_expert asks the loss once an expert: a loss of several then has one to look at.
    fields = {"experts": 2, "per_expert": True, "joint": 1.0, "grouping": "random"}
    chosen = {"local": tiny.quick(), "prior": "global", **fields}
    several, single = (
        run(tiny.experiment(GBME.model_validate({"loss": loss, **chosen}), rounds=1)).digest
        for loss in (RIDELoss(), LDAMLoss())
    )
    assert several == single
