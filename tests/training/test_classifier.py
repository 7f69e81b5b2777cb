"""The classifier apart: names, a new one, and the round in which it is re-trained."""

from __future__ import annotations

import pytest
import tiny
import torch
from torch import nn

from fedtail.models import SplitModel
from fedtail.models.heads import ScaledHead
from fedtail.training.classifier import named, new_classifier, prefix, second_stage, unnamed
from fedtail.training.federated_features import Head


@pytest.mark.parametrize(
    ("rounds", "fraction", "second"),
    [
        (10, 0.8, [9, 10]),
        (10, 0.75, [9, 10]),
        (100, 0.55, list(range(56, 101))),
        (3, 0.8, [3]),  # 2.4 rounds: the last one is still of the second kind
        (3, 0.01, [2, 3]),  # and the first one of the first
        (2, 0.5, [2]),
        (1, 0.5, []),
        (4, 1.0, []),
    ],
)
def test_when_the_second_stage_is(rounds: int, fraction: float, second: list[int]) -> None:
    found = [r for r in range(1, rounds + 1) if second_stage(r, rounds, fraction)]
    assert found == second


def test_names_there_and_back() -> None:
    model = SplitModel(nn.Sequential(nn.Identity(), nn.Linear(2, 3)))
    head = Head(torch.ones(3, 2), torch.zeros(3))
    assert set(named(head, model)) == {"1.weight", "1.bias"}
    assert torch.equal(unnamed(named(head, model), model).weight, head.weight)
    own = SplitModel(nn.Linear(2, 3, bias=False))
    assert prefix(own) == ""
    assert set(named(Head(head.weight, None), own)) == {"weight"}
    assert unnamed(named(Head(head.weight, None), own), own).bias is None


def test_a_new_classifier_leaves_frozen_factors_alone() -> None:
    model = SplitModel(nn.Sequential(nn.Identity(), ScaledHead(4, 3)))
    found = new_classifier(tiny.server(model, 1))
    assert set(found) == {"1.weight"}
    # U(-1/2, 1/2) for a width of 4; another round draws another one.
    assert 0.25 < float(found["1.weight"].abs().max()) <= 0.5
    again = new_classifier(tiny.server(model, 1))["1.weight"]
    other = new_classifier(tiny.server(model, 1, round=2))["1.weight"]
    assert torch.equal(found["1.weight"], again)
    assert not torch.equal(again, other)
