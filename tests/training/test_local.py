"""Local training: batches, optimisers and BatchNorm on one sample."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fedtail.training import Linear, LocalTraining, Shuffled, normalisable


def sizes(samples: int, pairs: bool = False, **fields: Any) -> list[int]:
    labels = torch.zeros(samples, dtype=torch.int64)
    generator = torch.Generator().manual_seed(0)
    batches = LocalTraining(**fields).batches(Shuffled(), labels, generator, pairs)
    return [len(batch) for batch in batches]


@pytest.mark.parametrize(
    ("samples", "fields", "expected"),
    [
        (10, {"batch_size": 4}, [4, 4, 2]),
        (10, {"batch_size": 4, "epochs": 2}, [4, 4, 2, 4, 4, 2]),
        (10, {"batch_size": 4, "epochs": 1.5}, [4, 4, 2, 4, 1]),  # half an epoch is 5 samples
        (10, {"batch_size": 4, "epochs": 0.25}, [3]),  # 2.5 samples, rounded up
        (10, {"batch_size": 4, "epochs": 1.1}, [4, 4, 2, 1]),  # 0.1 epochs is 1 sample
        (10, {"batch_size": 4, "epochs": 0.001}, [1]),
        (10, {"batch_size": 4, "steps": 5}, [4, 4, 2, 4, 4]),
        (10, {"batch_size": 4, "steps": 2, "epochs": 9}, [4, 4]),
        (3, {"batch_size": 8, "steps": 3}, [3, 3, 3]),
        (3, {"batch_size": 1}, [1, 1, 1]),
        (1, {"batch_size": 4, "epochs": 3}, [1, 1, 1]),
        (0, {"batch_size": 4}, []),
        (0, {"batch_size": 4, "steps": 7}, []),
    ],
)
def test_batches(samples: int, fields: dict[str, Any], expected: list[int]) -> None:
    assert sizes(samples, **fields) == expected


@pytest.mark.parametrize(
    ("samples", "fields", "expected"),
    [
        (9, {"batch_size": 4}, [4, 5]),  # not 4, 4, 1
        (10, {"batch_size": 4}, [4, 4, 2]),
        (10, {"batch_size": 4, "epochs": 1.5}, [4, 4, 2, 5]),
        (1, {"batch_size": 4}, [1]),  # nothing to join
        (3, {"batch_size": 1}, [1, 1, 1]),  # what was asked for
        (3, {"batch_size": 2, "steps": 2}, [3, 3]),
    ],
)
def test_with_batch_norm_a_last_batch_of_one_joins_the_one_before(
    samples: int, fields: dict[str, Any], expected: list[int]
) -> None:
    assert sizes(samples, pairs=True, **fields) == expected


def test_every_epoch_is_a_new_permutation_of_all_samples() -> None:
    labels = torch.zeros(20, dtype=torch.int64)
    local = LocalTraining(batch_size=7, epochs=2)
    batches = list(local.batches(Shuffled(), labels, torch.Generator().manual_seed(0), False))
    first, second = torch.cat(batches[:3]), torch.cat(batches[3:])
    assert first.sort().values.tolist() == second.sort().values.tolist() == list(range(20))
    assert not torch.equal(first, second)


def stepped(gradients: list[float], round: int = 1, **fields: Any) -> float:
    """Return where a weight of 1 is after steps along these gradients."""
    weight = nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    optimizer = LocalTraining(**{"lr": 0.1, **fields}).make_optimizer([weight], round, 2)
    for gradient in gradients:
        weight.grad = torch.tensor([gradient], dtype=torch.float64)
        optimizer.step()
    return float(weight.detach())


def test_sgd() -> None:
    # 1 - 0.1 · 2 - 0.1 · 3
    assert stepped([2.0, 3.0]) == pytest.approx(0.5)


def test_sgd_with_weight_decay() -> None:
    # The gradient is 2 + 0.5 · 1.
    assert stepped([2.0], weight_decay=0.5) == pytest.approx(1 - 0.1 * 2.5)


def test_momentum() -> None:
    # v1 = 2, v2 = 0.9 · 2 + 3 = 4.8: 1 - 0.1 · 2 - 0.1 · 4.8
    assert stepped([2.0, 3.0], momentum=0.9) == pytest.approx(0.32)


def test_nesterov() -> None:
    # v1 = 2, step 2 + 0.9 · 2 = 3.8; v2 = 4.8, step 3 + 0.9 · 4.8 = 7.32: 1 - 0.38 - 0.732
    assert stepped([2.0, 3.0], momentum=0.9, nesterov=True) == pytest.approx(-0.112)


def test_adam() -> None:
    # The first step is lr · g / (|g| + 1e-8), whatever the size of g.
    assert stepped([250.0], optimizer="adam") == pytest.approx(0.9)


def test_adam_adds_decay_to_the_gradient_and_adamw_takes_it_off_the_weight() -> None:
    # Adam: the decay changes the gradient, whose size does not matter. AdamW: 1 · (1 - 0.1 · 0.5).
    assert stepped([2.0], optimizer="adam", weight_decay=0.5) == pytest.approx(0.9)
    assert stepped([2.0], optimizer="adamw", weight_decay=0.5) == pytest.approx(0.85)


def test_the_schedule_sets_the_rate_of_a_round() -> None:
    # In the second of two rounds the factor is one half.
    assert stepped([2.0], round=2, schedule=Linear()) == pytest.approx(1 - 0.05 * 2)


def test_each_task_has_a_new_optimiser() -> None:
    local = LocalTraining(momentum=0.9)
    weight = nn.Parameter(torch.ones(1))
    first = local.make_optimizer([weight], 1, 1)
    weight.grad = torch.ones(1)
    first.step()
    assert local.make_optimizer([weight], 2, 2).state == {}


def test_one_sample_is_normalised_by_the_running_statistics() -> None:
    # Prepare: mean 1, variance 4, so 3 becomes (3 - 1) / sqrt(4 + 1e-5).
    norm = nn.BatchNorm1d(1)
    norm.running_mean, norm.running_var = torch.tensor([1.0]), torch.tensor([4.0])
    norm.train()

    # Execute
    with normalisable([norm], 1):
        out = norm(torch.tensor([[3.0]]))

    # Assert: finite, and nothing was learnt from one sample.
    assert float(out.detach()) == pytest.approx(1.0, rel=1e-5)
    assert norm.running_mean.tolist() == [1.0]
    assert norm.running_var.tolist() == [4.0]
    assert norm.num_batches_tracked is not None
    assert int(norm.num_batches_tracked) == 0
    assert norm.training


def test_two_samples_move_the_running_statistics() -> None:
    # Mean of 2 and 4 is 3; 0.9 · 0 + 0.1 · 3.
    norm = nn.BatchNorm1d(1)
    with normalisable([norm], 2):
        norm(torch.tensor([[2.0], [4.0]]))
    assert norm.running_mean is not None
    assert float(norm.running_mean) == pytest.approx(0.3)


def test_a_layer_that_was_frozen_stays_frozen() -> None:
    # An expert that is not trained keeps its BatchNorm in evaluation mode.
    frozen, trained = nn.BatchNorm1d(1).eval(), nn.BatchNorm1d(1)
    with normalisable([frozen, trained], 1):
        pass
    assert not frozen.training
    assert trained.training


def test_modes_come_back_after_an_error() -> None:
    norm = nn.BatchNorm1d(1)
    with pytest.raises(KeyError), normalisable([norm], 1):
        raise KeyError
    assert norm.training


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_momentum_is_for_sgd(optimizer: Any) -> None:
    with pytest.raises(ValueError, match=f"momentum is for sgd; {optimizer} has its own"):
        LocalTraining(optimizer=optimizer, momentum=0.9)
