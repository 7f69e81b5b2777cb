"""What every loss promises, whatever it is: finite numbers where classes are absent.

A loss that enters the registry is tested here without another line. If it works on experts only,
its name goes into `EXPERTS`.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedtail.losses import CrossEntropy, LocalLoss, LossContext
from fedtail.models import Output

EXPERTS: frozenset[str] = frozenset({"ride"})
"""Losses that need the logits of several experts."""

WIDTH = 5

# Labels of the batch, and the class counts of the client it is drawn from.
SITUATIONS: dict[str, tuple[list[int], list[int]]] = {
    "all classes": ([0, 1, 2, 3, 0, 1], [4, 3, 2, 1]),
    "absent classes": ([0, 2, 2, 0], [5, 0, 3, 0]),
    "a class that is not in the batch": ([0, 0, 0], [5, 1, 1, 1]),
    "a client with one class": ([1, 1, 1], [0, 9, 0, 0]),
    "one sample of a client with one sample": ([3], [0, 0, 0, 1]),
    "one sample": ([0], [50, 1, 0, 3]),
    "two classes": ([0, 1, 1], [1, 2]),
    "two classes, one absent": ([1], [0, 2]),
    "strong imbalance": ([0, 3], [100_000, 0, 0, 1]),
}


def example(
    name: str, labels: list[int], classes: int, scale: float
) -> tuple[Output, list[Tensor]]:
    """Return a forward pass whose gradients can be asked for, and what to ask for."""
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(len(labels), WIDTH, generator=generator, requires_grad=True)
    number = 3 if name in EXPERTS else 1
    weights = torch.randn(number, classes, WIDTH, generator=generator, requires_grad=True)
    experts = scale * torch.einsum("bw,ecw->ebc", features, weights)
    output = Output(experts.mean(0), features, experts if name in EXPERTS else None)
    return output, [features, weights]


@pytest.mark.parametrize("name", list(LocalLoss.registry))
@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("round", [1, 10])
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_value_and_gradient_are_finite(name: str, situation: str, round: int, scale: float) -> None:
    # Prepare
    labels, counts = SITUATIONS[situation]
    output, leaves = example(name, labels, len(counts), scale)
    held = torch.tensor(counts, dtype=torch.float32)
    context = LossContext(counts=held, prior=held, round=round, rounds=10)

    # Execute
    loss = LocalLoss.model_validate(name)(output, torch.tensor(labels), context)
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True)

    # Assert
    assert loss.shape == ()
    assert bool(torch.isfinite(loss))
    assert loss.dtype == torch.float32
    for gradient in gradients:
        assert gradient is None or bool(torch.isfinite(gradient).all())


@pytest.mark.parametrize("name", list(LocalLoss.registry))
def test_the_same_batch_gives_the_same_bits(name: str) -> None:
    labels, counts = SITUATIONS["absent classes"]
    held = torch.tensor(counts, dtype=torch.float32)
    context = LossContext(counts=held, prior=held, round=3, rounds=10)
    output, _ = example(name, labels, len(counts), 1.0)
    loss = LocalLoss.model_validate(name)
    y = torch.tensor(labels)
    assert torch.equal(loss(output, y, context), loss(output, y, context))


@pytest.mark.parametrize("name", list(LocalLoss.registry))
def test_neither_batch_nor_context_is_changed(name: str) -> None:
    labels, counts = SITUATIONS["absent classes"]
    held = torch.tensor(counts, dtype=torch.float32)
    context = LossContext(counts=held.clone(), prior=held.clone(), round=3, rounds=10)
    output, _ = example(name, labels, len(counts), 1.0)
    before, y = output.logits.detach().clone(), torch.tensor(labels)
    LocalLoss.model_validate(name)(output, y, context)
    assert torch.equal(output.logits, before)
    assert y.tolist() == labels
    assert torch.equal(context.counts, held)
    assert torch.equal(context.prior, held)


@pytest.mark.parametrize("name", list(LocalLoss.registry))
@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("round", [1, 10])
def test_gradients_are_those_of_finite_differences(name: str, situation: str, round: int) -> None:
    # In float64. A loss of experts is given their mean as a constant, since it may hold it fixed.
    labels, counts = SITUATIONS[situation]
    held = torch.tensor(counts, dtype=torch.float64)
    context = LossContext(counts=held, prior=held, round=round, rounds=10)
    made, _ = example(name, labels, len(counts), 1.0)
    loss, y = LocalLoss.model_validate(name), torch.tensor(labels)
    logits, features = (t.detach().double() for t in (made.logits, made.features))
    if made.experts is None:
        leaves = (logits.requires_grad_(), features.requires_grad_())
        assert torch.autograd.gradcheck(lambda z, h: loss(Output(z, h), y, context), leaves)
    else:
        each = made.experts.detach().double().requires_grad_()
        assert torch.autograd.gradcheck(
            lambda z: loss(Output(logits, features, z), y, context), (each,)
        )


@pytest.mark.parametrize("name", list(LocalLoss.registry))
def test_a_loss_that_reads_no_features_needs_none(name: str) -> None:
    labels, counts = SITUATIONS["absent classes"]
    held = torch.tensor(counts, dtype=torch.float32)
    context = LossContext(counts=held, prior=held, round=3, rounds=10)
    output, _ = example(name, labels, len(counts), 1.0)
    loss, y = LocalLoss.model_validate(name), torch.tensor(labels)
    given = output if loss.reads_features else output._replace(features=torch.empty(0))
    assert torch.equal(loss(given, y, context), loss(output, y, context))


def test_a_loss_of_ones_own_is_given_features_unless_it_says_otherwise() -> None:
    class Compact(CrossEntropy):
        def __call__(self, output: Output, y: Tensor, context: LossContext) -> Tensor:
            return super().__call__(output, y, context) + output.features.square().mean()

    class Renamed(CrossEntropy):
        pass

    assert Compact.reads_features
    assert not Renamed.reads_features


def test_the_abstract_loss_says_so() -> None:
    context = LossContext(torch.ones(2), torch.ones(2), 1, 1)
    output = Output(torch.zeros(1, 2), torch.zeros(1, 1))
    with pytest.raises(ValueError, match="abstract"):
        LocalLoss()(output, torch.tensor([0]), context)
