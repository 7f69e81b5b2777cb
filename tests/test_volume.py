"""How much a run sends, said before it starts, refused above a limit, and made less."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import nn

from fedtail import (
    CCVR,
    Arrays,
    ClosedForm,
    CReFF,
    Experiment,
    FedAvg,
    FedtailError,
    Method,
    RedGrape,
)
from fedtail.forms import ByClass, Form, Like, Number
from fedtail.loop import run
from fedtail.metrics.traffic import GB
from fedtail.models import SplitModel
from fedtail.protocol import Payload
from fedtail.setting import Setting, prepare
from fedtail.training.prototypes import for_wire, from_wire
from fedtail.volume import Traffic, Volume, form_bytes


def wide(method: Method[Any], **fields: Any) -> Experiment:
    """Return a hundred classes on 1,280 features, one sample of each; 20 clients, 8 a round."""
    x = np.zeros((100, 1280), dtype=np.float32)
    data = Arrays(x, np.arange(100), x, np.arange(100), normalisation="none")
    chosen: dict[str, Any] = {
        "method": method,
        "data": data,
        "model": {"name": "mlp", "hidden": []},
        "partition": "iid",
        "clients": 20,
        "per_round": 8,
        "rounds": 50,
        "device": "cpu",
        **fields,
    }
    return Experiment(**chosen)


HEAD = 4 * (1280 * 100 + 100)
"""The bytes of a linear head."""


def traffic(setting: Setting) -> Traffic:
    assert setting.traffic is not None
    return setting.traffic


def test_bytes_of_a_form() -> None:
    form = Form().group("model", {"w": Like((3, 2)), "n": Like((), torch.int64)})
    form = form.group("grad", {"weight": Like((5,), torch.float16)}, ByClass(10)).numbers(
        a=Number()
    )
    # 6 float32, one int64, one scalar; of each class held five float16 and its number.
    assert form_bytes(form, 0) == 24 + 8 + 8
    assert form_bytes(form, 3) == 40 + 3 * (10 + 8)
    assert form_bytes(form, 2.5) == 40 + 45


def test_rounds_times_cohort_and_once_for_everybody() -> None:
    found = Traffic.of([Volume(100, 50, 7, "a"), Volume(once=3, less="b")], 10, 4, 20)
    assert found == (600, 200, 6200, "a; b")
    assert Traffic.of([], 10, 4, 20) is None


def test_prototypes_of_a_hundred_classes() -> None:
    # Down: W and Ŵ, and the gradient of one head for each of 100 classes with its number. Up: both
    # heads, six scalars, and the gradients of the five classes that each client holds.
    found = traffic(prepare(wide(RedGrape())))
    down, up = 2 * HEAD + 100 * (HEAD + 8), 2 * HEAD + 6 * 8 + 5 * (HEAD + 8)
    assert found.round == 8 * (down + up)
    assert found.total == 50 * found.round
    assert found.total / 1e9 == pytest.approx(22.4, abs=0.1)
    half = traffic(prepare(wide(RedGrape(wire="float16"))))
    assert half.total / found.total == pytest.approx(0.518, abs=0.001)  # the heads stay whole


def test_covariances_of_a_hundred_classes() -> None:
    # Once, for each of 20 clients: the model down, and of five classes two int64, and 1280 and
    # 1280·1281/2 float64.
    found = traffic(prepare(wide(CCVR())))
    assert found.once == 20 * (HEAD + 5 * (16 + 8 * (1280 + 1280 * 1281 // 2)))
    diagonal = traffic(prepare(wide(CCVR(covariance="diagonal"))))
    assert diagonal.once == 20 * (HEAD + 5 * (16 + 8 * 2560))
    low = traffic(prepare(wide(CCVR(covariance="low-rank", rank=10))))
    assert low.once == 20 * (HEAD + 4 * 12800 + 5 * (16 + 8 * (1280 + 12800)))


@pytest.mark.parametrize(
    "method",
    [
        RedGrape(per_class=2),
        RedGrape(per_class=2, wire="float16"),
        CReFF(features=2, match_steps=1, head_epochs=1),
        CReFF(features=2, match_steps=1, head_epochs=1, wire="float16"),
        CCVR(samples=2, head_epochs=1),
        CCVR(samples=2, head_epochs=1, covariance="diagonal"),
        CCVR(samples=2, head_epochs=1, covariance="low-rank", rank=2),
        ClosedForm(),
        ClosedForm.model_validate({"head": {"name": "ridge", "rank": 3}}),
        ClosedForm.model_validate({"head": "ncm"}),
    ],
)
def test_what_is_said_is_what_is_sent(method: Method[Any]) -> None:
    made = tiny.experiment(method, per_round=6, eval_every=3)
    found, history = traffic(prepare(made)), run(made).history
    sent = sum(record["bytes_up"] + record["bytes_down"] for record in history)
    # RedGrape's first round has no prototypes yet, and nobody holds the last class; closed forms
    # send three scalars. The rest is exact but for a fraction of a class that all hold on average.
    missing = 6 * 24
    if isinstance(method, RedGrape):
        form = method.train_form(Payload(), SplitModel(tiny.plain_model()), tiny.CLASSES)
        missing = 6 * form_bytes(form, tiny.CLASSES)
    assert abs(found.total - sent) <= missing + 3 * 6


def test_a_last_step_counts() -> None:
    made = tiny.experiment(finish="closed-form")
    found, plain = traffic(prepare(made)), run(tiny.experiment()).history
    sent = [record["bytes_up"] + record["bytes_down"] for record in run(made).history]
    less = [record["bytes_up"] + record["bytes_down"] for record in plain]
    assert found.once + 6 * 24 == sum(sent) - sum(less)
    assert prepare(tiny.experiment(FedAvg())).traffic is None


def test_much_is_said_before_the_run(caplog: pytest.LogCaptureFixture) -> None:
    said = prepare(wide(RedGrape())).remarks()
    assert any("about 426.1 MB in a round, 20.8 GB in all; method.wire=float16" in s for s in said)
    with caplog.at_level(logging.WARNING, "fedtail"):
        run(wide(CReFF(features=1, match_steps=0, head_epochs=0), rounds=1, clients=2, per_round=2))
    assert "in a round" not in caplog.text  # below a gigabyte nothing is


def test_too_much_is_refused_with_the_number() -> None:
    with pytest.raises(
        FedtailError,
        match=r"'redgrape' would send about 426.1 MB in a round, 208.1 GB in all, more than "
        r"traffic_limit = 100 GB: method.wire=float16 .* raise the limit with traffic_limit=209 ",
    ):
        prepare(wide(RedGrape(), rounds=500))
    for limit in (209, 0):
        assert traffic(prepare(wide(RedGrape(), rounds=500, traffic_limit=limit))).total > 100 * GB
    with pytest.raises(FedtailError, match="traffic_limit"):
        wide(RedGrape(), traffic_limit=-1)


def test_half_precision_and_back() -> None:
    table = {"classes": torch.tensor([0, 7]), "weight": torch.tensor([[1e6, 1 / 3], [-1e6, 2e-5]])}
    sent = for_wire(table, "float16")
    assert (sent["classes"].dtype, sent["weight"].dtype) == (torch.int64, torch.float16)
    back = from_wire(sent)["weight"]
    # Eleven bits; below 2⁻¹⁴ steps of 2⁻²⁴; the largest is 65504.
    expected = torch.tensor([[65504.0, 1 / 3], [-65504.0, 2e-5]])
    assert torch.allclose(back, expected, rtol=2**-11, atol=2**-25)
    assert for_wire(table, "float32")["weight"].dtype == torch.float32


@pytest.mark.parametrize(
    "method", [RedGrape(per_class=2), CReFF(features=3, match_steps=3, head_epochs=3)]
)
def test_half_precision_on_the_wire_moves_little(method: Any) -> None:
    whole, half = (run(tiny.experiment(method.but(wire=w))) for w in ("float32", "float16"))
    assert whole.digest != half.digest
    for name, tensor in whole.tensors.items():
        assert torch.allclose(tensor, half.tensors[name], rtol=0, atol=2e-2)


def test_only_the_last_cohorts_prototypes() -> None:
    method = RedGrape(per_class=2, prototypes="cohort", local=tiny.quick())
    result = run(tiny.experiment(method, per_round=1, rounds=4))
    for record, kept in zip(result.history, (1, 2, 3, 4), strict=True):
        (client,) = record["clients"]
        held = sum(n > 0 for n in tiny.COUNTS[client])
        assert record["method"]["prototypes"] == held, kept
    last = result.history[-1]["clients"][0]
    classes = [c for c, n in enumerate(tiny.COUNTS[last]) if n]
    assert result.state.prototypes["classes"].tolist() == classes


def draws(covariance: str, x: list[list[float]], rank: int = 2) -> torch.Tensor:
    """Return many virtual features of one class."""
    from fedtail.training.moments import class_sums, pooled, sample_features

    data = tiny.federation(x, [0] * len(x), [range(len(x))], classes=2)
    width = len(x[0])
    model = SplitModel(nn.Sequential(nn.Identity(), nn.Linear(width, 2)))
    test = None
    if covariance == "low-rank":
        test = torch.randn(width, rank, generator=torch.Generator().manual_seed(1))
    sums = class_sums(model, data.client(0), products=covariance, test=test)  # type: ignore[arg-type]
    moments = pooled(sums._asdict(), test)
    return sample_features(moments, 4000, torch.Generator().manual_seed(0))[0].double()


def test_diagonal_and_low_rank_covariances() -> None:
    # Mean (2, 2, 0); deviations ±(1, 1, 0): Σ = (2·(1, 1, 0)ᵀ(1, 1, 0)) / (2 - 1), of rank 1.
    x = [[3.0, 3.0, 0.0], [1.0, 1.0, 0.0]]
    full, low = draws("full", x), draws("low-rank", x)
    assert torch.allclose(full, low, atol=1e-5)  # one direction is seen by any sketch
    assert torch.allclose(low[:, 0], low[:, 1], atol=1e-5)
    diagonal = draws("diagonal", x)
    assert torch.allclose(diagonal.mean(0), torch.tensor([2.0, 2.0, 0.0]).double(), atol=0.1)
    assert torch.allclose(
        diagonal.T.cov(), torch.diag(torch.tensor([2.0, 2.0, 0.0])).double(), atol=0.15
    )


@pytest.mark.parametrize("covariance", ["diagonal", "low-rank"])
def test_ccvr_with_less(covariance: Any) -> None:
    method = CCVR(samples=5, head_epochs=2, covariance=covariance, rank=3, local=tiny.quick())
    result = run(tiny.experiment(method))
    assert all(bool(torch.isfinite(t).all()) for t in result.tensors.values())
