"""Gradient matching and re-training against autograd, step by step."""

from __future__ import annotations

import pytest
import sizes
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedtail.training import federated_features
from fedtail.training.class_gradients import ClassGradients
from fedtail.training.federated_features import (
    Head,
    Matching,
    Pull,
    match_features,
    new_head,
    pull_features,
    train_head,
)

PAPER = Matching(scale=1 / 4, eps=0.0, bias=False)
CODE = Matching(scale=1.0, eps=1e-6, bias=True)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def head_of(classes: int, width: int, bias: bool = True) -> Head:
    return Head(drawn(classes, width, seed=1), drawn(classes, seed=2) if bias else None)


def feature_gradients(features: Tensor, classes: Tensor, head: Head) -> ClassGradients:
    """Return the head's gradient of the mean cross-entropy on each class's features (A, m, d)."""
    given = [t.clone().requires_grad_() for t in head if t is not None]
    each = [
        torch.autograd.grad(
            functional.cross_entropy(functional.linear(s, *given), c.expand(len(s))), given
        )
        for s, c in zip(features, classes, strict=True)
    ]
    weight, *bias = (torch.stack(rows) for rows in zip(*each, strict=True))
    return classes, weight, bias[0] if bias else None


def autograd_steps(
    features: Tensor, head: Head, targets: ClassGradients, matching: Matching, steps: int, lr: float
) -> tuple[Tensor, float]:
    """Loop over the classes, with a double backward through the gradient of the head."""
    s = features.clone().requires_grad_()
    given = [t.clone().requires_grad_() for t in head if t is not None]
    last = 0.0
    for step in range(steps + 1):
        loss = torch.zeros(())
        for i, c in enumerate(targets[0]):
            ce = functional.cross_entropy(functional.linear(s[i], *given), c.expand(len(s[i])))
            g = torch.autograd.grad(ce, given, create_graph=True)
            rows = [(g[0], targets[1][i])]
            if matching.bias and targets[2] is not None:
                rows.append((g[1][None], targets[2][i][None]))
            for a, t in rows:
                q = a.norm(dim=1) * t.norm(dim=1) + matching.eps
                loss = loss + matching.scale * (1 - (a * t).sum(dim=1) / q).sum()
        last = float(loss.detach())
        if step < steps:
            s = (s - lr * torch.autograd.grad(loss, s)[0]).detach().requires_grad_()
    return s.detach(), last


@pytest.mark.parametrize("matching", [PAPER, CODE])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("chunk", [1, 2**18])
@pytest.mark.parametrize("m", [2, 5])  # fewer than classes, and more
def test_equals_double_backward(
    matching: Matching, bias: bool, chunk: int, m: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Prepare: three of four classes were reported.
    monkeypatch.setattr(federated_features, "CHUNK_SIZE", chunk)
    features, head = drawn(3, m, 6), head_of(4, 6, bias)
    targets = feature_gradients(drawn(3, m, 6, seed=3), torch.tensor([0, 2, 3]), head)
    before = features.clone()

    # Execute
    matched = match_features(features, head, targets, matching, steps=7, lr=0.3)
    expected, loss = autograd_steps(features, head, targets, matching, steps=7, lr=0.3)

    # Assert
    assert torch.allclose(matched.features, expected, atol=1e-5)
    assert matched.loss == pytest.approx(loss, abs=1e-4)
    assert torch.equal(features, before)
    assert (expected - before).abs().max() > 0.05


@pytest.mark.parametrize("matching", [PAPER, CODE])
def test_the_same_direction_has_no_distance(matching: Matching) -> None:
    # D(g, g) = 0 and D(g, a g) = 0 for a > 0; D(g, −g) = 2 in every row.
    features, head, classes = drawn(2, 5, 6), head_of(4, 6), torch.tensor([0, 3])
    _, weight, bias = feature_gradients(features, classes, head)
    assert bias is not None
    rows = 4 * matching.scale + (1 if matching.bias else 0)
    for factor, distance in ((1.0, 0.0), (3.0, 0.0), (-2.0, 2 * 2 * rows)):
        targets = classes, factor * weight, factor * bias
        matched = match_features(features, head, targets, matching, steps=0, lr=1.0)
        assert matched.loss == pytest.approx(distance, abs=1e-3)
        each = 0.0 if factor > 0 else 2.0
        assert matched.before.tolist() == pytest.approx([each, each], abs=1e-3)


def by_hand(target: list[list[float]], matching: Matching) -> tuple[float, Tensor]:
    """Match one feature (1, 0) of class 0 at a zero head of two classes, for one step of rate 1.

    p = (1/2, 1/2), r = (-1/2, 1/2), so g = [[-1/2, 0], [1/2, 0]].
    """
    head = Head(torch.zeros(2, 2), torch.zeros(2))
    targets = torch.tensor([0]), torch.tensor([target]), torch.tensor([[-1.0, 1.0]])
    matched = match_features(torch.tensor([[[1.0, 0.0]]]), head, targets, matching, 1, 1.0)
    before = match_features(torch.tensor([[[1.0, 0.0]]]), head, targets, matching, 0, 1.0)
    return before.loss, matched.features[0, 0]


def test_orthogonal_rows() -> None:
    # Both rows have cosine 0: the mean is 1, the code's sum 2 (its bias (-1, 1) agrees: + 0).
    # W = 0, so only Aᵀ r moves the feature. A_j = -scale t_j / (‖g_j‖ ‖t_j‖) = -scale · 2 t_j, and
    # s - Aᵀ r = (1, 0) + 2 scale (r_0 t_0 + r_1 t_1) = (1, 0) + 2 scale · (1/2)(−t_0 + t_1).
    target = [[0.0, 3.0], [0.0, -3.0]]
    loss, s = by_hand(target, Matching(scale=1 / 2, eps=0.0, bias=False))
    assert loss == pytest.approx(1.0)
    # t is scaled to norm 1: -t_0 + t_1 = (0, -2), times 2 · 1/2 · 1/2 = 1/2.
    assert s.tolist() == pytest.approx([1.0, -1.0])
    loss, s = by_hand(target, CODE)
    assert loss == pytest.approx(2.0, abs=1e-5)
    assert s.tolist() == pytest.approx([1.0, -2.0], abs=1e-5)


@pytest.mark.parametrize("matching", [PAPER, CODE])
def test_zero_rows_of_the_target(matching: Matching) -> None:
    # Each row counts 1 and pulls nowhere.
    loss, s = by_hand([[0.0, 0.0], [0.0, 0.0]], matching)
    assert loss == pytest.approx(2 * matching.scale, abs=1e-5)
    assert s.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("matching", [PAPER, CODE])
@pytest.mark.parametrize("m", [1, 3])
def test_zero_rows_of_the_features(matching: Matching, m: int) -> None:
    # A head so sure of its class that softmax underflows: p = e_c, g = 0, nothing moves.
    head = Head(torch.zeros(2, 2), torch.tensor([1000.0, 0.0]))
    targets = torch.tensor([0]), torch.ones(1, 2, 2), torch.ones(1, 2)
    matched = match_features(drawn(1, m, 2), head, targets, matching, steps=3, lr=1.0)
    assert torch.equal(matched.features, drawn(1, m, 2))
    assert matched.after.tolist() == [1.0]
    # Features that are zero: finite, whatever the rate.
    matched = match_features(torch.zeros(1, m, 2), head_of(2, 2), targets, matching, 1, 0.1)
    assert bool(torch.isfinite(matched.features).all())


def test_the_loss_falls() -> None:
    features, head = drawn(4, 8, 6), head_of(4, 6)
    targets = feature_gradients(drawn(4, 20, 6, seed=3).relu(), torch.arange(4), head)
    losses = [match_features(features, head, targets, CODE, n, 0.1).loss for n in (0, 10, 50, 200)]
    assert losses == sorted(losses, reverse=True)
    matched = match_features(features, head, targets, CODE, 200, 0.1)
    assert float(matched.after.mean()) < 0.5 * float(matched.before.mean())


def test_nothing_to_match() -> None:
    none = torch.empty(0, dtype=torch.int64), torch.empty(0, 4, 6), torch.empty(0, 4)
    matched = match_features(torch.empty(0, 5, 6), head_of(4, 6), none, CODE, 3, 0.1)
    assert (matched.features.shape, matched.loss, len(matched.before)) == ((0, 5, 6), 0.0, 0)


@pytest.mark.parametrize("bias", [True, False])
def test_re_training_equals_autograd(bias: bool) -> None:
    # Prepare: 3 · 7 = 21 features in batches of 4: the last of each epoch has one.
    features, head = drawn(3, 7, 5), head_of(3, 5, bias)
    labels = torch.arange(3).repeat_interleave(7)
    layer = nn.Linear(5, 3, bias=bias)
    layer.load_state_dict({k: v for k, v in head._asdict().items() if v is not None})
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.2)
    generator = torch.Generator().manual_seed(5)
    for _ in range(6):
        for index in torch.split(torch.randperm(21, generator=generator), 4):
            optimizer.zero_grad()
            loss = functional.cross_entropy(layer(features.reshape(-1, 5)[index]), labels[index])
            torch.autograd.backward(loss)
            optimizer.step()

    # Execute
    found = train_head(head, features, 6, 4, 0.2, torch.Generator().manual_seed(5))

    # Assert
    assert torch.allclose(found.weight, layer.weight, atol=1e-5)
    assert (found.bias is None) == (not bias)
    if found.bias is not None:
        assert torch.allclose(found.bias, layer.bias, atol=1e-5)
    assert torch.equal(head.weight, drawn(3, 5, seed=1))


def test_a_new_head_is_drawn_as_a_linear_layer() -> None:
    weight, bias = new_head(50, 16, True, torch.Generator().manual_seed(0))
    assert bias is not None
    assert max(weight.abs().max(), bias.abs().max()) <= 0.25
    assert float(weight.std()) == pytest.approx(0.25 / 3**0.5, rel=0.1)
    assert new_head(2, 3, False, torch.Generator()).bias is None


def test_bits_do_not_depend_on_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    features, head = drawn(5, 4, 6), head_of(5, 6)
    targets = feature_gradients(drawn(5, 4, 6, seed=3), torch.arange(5), head)
    found = []
    for cores in (1, 2, 64):
        monkeypatch.setattr(federated_features, "own_threads", lambda cores=cores: cores)
        found.append(match_features(features, head, targets, CODE, steps=7, lr=0.3))
    for other in found[1:]:
        assert torch.equal(found[0].features, other.features) and found[0].loss == other.loss
        assert torch.equal(found[0].after, other.after)


@pytest.mark.parametrize("chunk", [1, 2**18])
def test_a_pull_is_one_more_term_of_the_loss(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(federated_features, "CHUNK_SIZE", chunk)
    features, head, classes = drawn(3, 5, 6), head_of(4, 6), torch.tensor([0, 2, 3])
    pull = Pull(Head(drawn(4, 6, seed=4), None), weight=0.5)

    # Alone, against autograd: the weight times each feature's cross-entropy.
    s = features.clone()
    for _ in range(7):
        s.requires_grad_()
        z = functional.linear(s, pull.head.weight).flatten(0, 1)
        loss = 0.5 * functional.cross_entropy(z, classes.repeat_interleave(5), reduction="sum")
        s = (s - 0.3 * torch.autograd.grad(loss, s)[0]).detach()
    before = features.clone()
    assert torch.allclose(pull_features(features, classes, pull, 7, 0.3), s, atol=1e-5)
    assert torch.equal(features, before)
    assert torch.equal(pull_features(features, classes, pull, 0, 0.3), before)

    # With targets, one step is the sum of both.
    targets = feature_gradients(drawn(3, 5, 6, seed=3), classes, head)
    both = match_features(features, head, targets, CODE, 1, 0.3, pull).features
    matched = match_features(features, head, targets, CODE, 1, 0.3).features
    pulled = pull_features(features, classes, pull, 1, 0.3)
    assert torch.allclose(both - features, matched + pulled - 2 * features, atol=1e-5)


def test_a_head_of_many_classes_needs_no_table_of_them() -> None:
    # 3,000 classes, of four of which there is a feature each: 12,000 one-hot numbers.
    head, features = head_of(3000, 2), drawn(4, 1, 2)
    classes, draw = torch.tensor([7, 0, 2999, 5]), torch.Generator().manual_seed(0)
    counted = sizes.made(lambda: train_head(head, features, 1, 2, 0.1, draw, classes))
    assert counted.largest <= 12_000
