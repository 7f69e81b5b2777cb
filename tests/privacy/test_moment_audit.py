"""What sums of features tell of a client with few samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from closing import asked, identity
from command_line import fedtail

from fedtail import ClosedForm, Experiment, run
from fedtail.privacy.moment_audit import heard, moment_leak, recovered, spanned
from fedtail.setting import prepare
from fedtail.training.feature_sums import Wanted

X = [[1.0, 0.0, 2.0, 0.0], [0.0, 3.0, 0.0, 0.5]]


def draw() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("rank", [0, 2])
def test_the_features_of_a_single_sample_of_each_class_are_known(rank: int) -> None:
    data = tiny.federation(X, [0, 1], [[0, 1]], classes=2)
    sums = asked(identity(4, 2), data, Wanted(balanced=True, rank=rank))
    assert torch.allclose(recovered(sums, draw()), torch.tensor(X).double(), atol=1e-5)


def test_two_samples_of_a_class_are_told_apart_because_they_are_not_negative() -> None:
    # The two do not overlap, so no other rotation of them has a coordinate of zero where they do.
    data = tiny.federation(X, [0, 0], [[0, 1]], classes=2)
    sums = asked(identity(4, 2), data, Wanted())
    found = recovered(sums, draw(), turns=2000)
    order = found[:, 1].argsort()
    assert torch.allclose(found[order], torch.tensor(X).double(), atol=0.05)
    # Any rotation has the same second moments.
    turned = recovered(sums, draw(), turns=0)
    assert torch.allclose(turned.T @ turned, found.T @ found, atol=1e-9)


def test_the_span_tells_who_is_in_it() -> None:
    data = tiny.federation(X, [0, 0], [[0, 1]], classes=2)
    basis = spanned(asked(identity(4, 2), data, Wanted()))
    real, other = torch.tensor(X).double(), torch.tensor([[1.0, 0.0, 0.0, 0.0]]).double()
    assert float((real - real @ basis.T @ basis).norm()) < 1e-9
    # e₁ lies on (1, 0, 2, 0) / √5 with 1/√5: what is left has the norm √(1 − 1/5).
    left = float((other - other @ basis.T @ basis).norm())
    assert left == pytest.approx(0.8**0.5)


def digits(**fields: Any) -> Experiment:
    chosen: dict[str, Any] = {
        "method": ClosedForm(),
        "model": {"name": "mlp", "hidden": []},
        "tail": {"name": "exponential", "imbalance": 50},
        "clients": 20,
        "rounds": 1,
        "device": "cpu",
        **fields,
    }
    return Experiment(**chosen)


def test_small_clients_of_a_real_run_are_seen_through() -> None:
    made = digits()
    result, setting = run(made), prepare(made)
    leak = moment_leak(setting, setting.runtime(), result.tensors)
    assert leak is not None
    counts = torch.stack([setting.federation.counts(k) for k in range(20)])
    assert (leak.samples, leak.alone) == (int(counts.sum()), int((counts == 1).sum()))
    assert leak.members == pytest.approx(1.0)
    assert leak.recovered is not None and leak.chance is not None
    assert leak.recovered > leak.chance + 0.2


def test_an_aimed_sketch_shows_who_is_in_it_where_a_client_has_few_samples() -> None:
    # One block of ten columns: all directions of clients with up to nine or ten samples.
    made = digits(method=ClosedForm.model_validate({"head": {"name": "ridge", "blocks": 1}}))
    result, setting = run(made), prepare(made)
    head = setting.method.closed_head()
    assert head is not None
    said = heard(head, setting, setting.runtime(), result.tensors)
    assert all(sums.test is not None and sums.test.shape[1] <= 10 for sums in said.values())
    leak = moment_leak(setting, setting.runtime(), result.tensors)
    exact = digits()
    other, whole = run(exact), prepare(exact)
    known = moment_leak(whole, whole.runtime(), other.tensors)
    assert leak is not None and known is not None
    assert leak.members is not None and known.members is not None
    assert 0.6 < leak.members <= known.members


def test_without_second_moments_only_single_samples_are_seen() -> None:
    made = digits(method=ClosedForm.model_validate({"head": "ncm"}))
    result, setting = run(made), prepare(made)
    leak = moment_leak(setting, setting.runtime(), result.tensors)
    assert leak is not None and leak.alone > 0
    assert (leak.small, leak.members) == (0, None)
    plain = tiny.experiment(rounds=1)
    assert moment_leak(prepare(plain), prepare(plain).runtime(), run(plain).tensors) is None


def test_the_command_says_it(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run(digits(method="fedavg", finish="closed-form"), out=out)
    said = fedtail("audit", str(out)).out
    assert "fewer samples than the 64 features" in said
    assert "only one of their class" in said
    assert json.loads((out / "audit.json").read_text())["moments"]["width"] == 64
