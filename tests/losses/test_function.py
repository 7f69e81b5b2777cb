from __future__ import annotations

from typing import Any

import pytest
import tiny
import torch
from torch import Tensor
from torch.nn import functional

from fedtail import FedAvg, FedtailError, FunctionLoss, LossContext, Output, run
from fedtail.described import make_experiment

CONTEXT = LossContext(torch.ones(3), torch.ones(3), 1, 1)


def squared(logits: Tensor, y: Tensor) -> Tensor:
    return (logits - functional.one_hot(y, logits.shape[1])).square().mean()


def rows(logits: Tensor, y: Tensor) -> Tensor:
    return logits.sum(1)


def test_it_is_the_function_of_logits_and_labels() -> None:
    output = Output(torch.tensor([[1.0, 3.0]]), torch.zeros(1, 1))
    # ((1 - 1)² + (3 - 0)²) / 2
    assert float(FunctionLoss(function=squared)(output, torch.tensor([0]), CONTEXT)) == 4.5


def test_a_method_takes_a_plain_function() -> None:
    method: FedAvg[Any] = FedAvg(loss=squared, local=tiny.quick())
    assert method.loss == FunctionLoss(function=squared)
    own = run(tiny.experiment(method))
    assert own.digest == run(tiny.experiment(method, workers=2)).digest
    assert own.digest != run(tiny.experiment()).digest
    same: FedAvg[Any] = FedAvg(loss=functional.cross_entropy, local=tiny.quick())
    assert run(tiny.experiment(same)).digest == run(tiny.experiment()).digest


def test_one_that_cannot_be_imported_is_named_with_workers() -> None:
    method: FedAvg[Any] = FedAvg(loss=lambda z, y: squared(z, y), local=tiny.quick())
    run(tiny.experiment(method, rounds=1))
    with pytest.raises(FedtailError, match="classes and functions in a module that can be import"):
        run(tiny.experiment(method, rounds=1, workers=2))


def test_what_is_not_one_number_is_refused() -> None:
    method: FedAvg[Any] = FedAvg(loss=rows, local=tiny.quick())
    with pytest.raises(FedtailError, match=r"test_function:rows' returns a tensor of shape \(4,\)"):
        run(tiny.experiment(method, rounds=1))


def test_a_description_only_names_it() -> None:
    plain = tiny.experiment(FedAvg(loss=squared)).describe()["method"]
    assert plain["loss"] == {"name": "function", "function": "test_function:squared"}
    with pytest.raises(FedtailError, match="this run's loss was made in Python"):
        make_experiment({"method": plain})
