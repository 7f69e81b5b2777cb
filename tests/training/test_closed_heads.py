"""Closed-form heads: by hand, against pooled data, and for any way to share samples out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from closing import asked, identity
from torch import Tensor

from fedtail import ClosedHead, FedtailError
from fedtail.models import SplitModel
from fedtail.models.heads import CosineHead
from fedtail.training.closed_heads import Standard, aimed, frame, standardised
from fedtail.training.feature_sums import FeatureSums, Wanted
from fedtail.training.federated_features import Head

LINE = [[0.0], [4.0], [-2.0]]  # class 0 has mean 2, class 1 one sample


def head_of(
    head: ClosedHead,
    x: Sequence[Sequence[float]],
    y: Sequence[int],
    parts: Any = None,
    classes: int = 2,
    bias: bool = True,
) -> Head:
    """Return a head as a federation computes it."""
    data = tiny.federation(x, y, parts or [range(len(y))], classes)
    return head.head(asked(identity(len(x[0]), classes, bias), data, head.wanted), bias)


def make(name: str, **fields: object) -> ClosedHead:
    return ClosedHead.model_validate({"name": name, **fields})


def test_balanced_ridge_by_hand() -> None:
    # A = ½ (½ (0 + 16) + 4) = 6, b = (2, -2) / 2, and with ρ = 1 the penalty is tr A / d = 6:
    # W = (1, -1) / 12. The scale: Σ w̄ μ = (2 + 2) / 12 = 1/3. Within classes ½ (4 + 0) = 2, with
    # N / (N - L) = 3 / 1 it is S = 6, so tr(W̄ S W̄ᵀ) = 2 · 6 / 144 = 1/12, and t = 4.
    found = head_of(make("ridge", standardise=False), LINE, [0, 0, 1])
    assert torch.allclose(found.weight, torch.tensor([[1 / 3], [-1 / 3]]).double())
    assert found.bias is not None and found.bias.tolist() == [0.0, 0.0]
    # Means ±2 and variance 6: the log-likelihood ratio is (4 / 6) h, which is that of the logits.
    assert float(found.weight[0] - found.weight[1]) == pytest.approx(4 / 6)


def test_ridge_without_balance_counts_samples() -> None:
    # One sample e₁ of class 0 and three e₂ of class 1: A = diag(1, 3) / 4, b = (e₁, 3 e₂) / 4, and
    # tr A / 2 = 1/2. With ρ = 1: w_0 = (1/4) / (3/4) e₁ = e₁ / 3, w_1 = (3/4) / (5/4) e₂ = 3/5 e₂.
    # Balanced: A = diag(1, 1) / 2, both 1/2 / (1/2 + 1/2) = 1/2.
    x, y = [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0]], [0, 1, 1, 1]
    plain = head_of(make("ridge", standardise=False, balance=False), x, y).weight
    assert torch.allclose(plain / plain[0, 0], torch.tensor([[1.0, 0.0], [0.0, 9 / 5]]).double())
    even = head_of(make("ridge", standardise=False), x, y).weight
    assert torch.allclose(even / even[0, 0], torch.eye(2).double())


def test_lda_by_hand() -> None:
    # Σ = (0 + 16 + 4 - 2·4 - 4) / (3 - 2) = 8: w = μ / 8 = ±1/4, offsets -½ · 4 / 8 = -1/4. t = 1.
    plain = make("lda", standardise=False, shrinkage=0, shrink_means=False)
    found = head_of(plain, LINE, [0, 0, 1])
    assert torch.allclose(found.weight, torch.tensor([[0.25], [-0.25]]).double())
    assert found.bias is not None
    assert torch.allclose(found.bias, torch.tensor([-0.25, -0.25]).double())
    # By samples: + log(2/3) and log(1/3).
    prior = head_of(plain.but(balance=False), LINE, [0, 0, 1]).bias
    assert prior is not None
    expected = torch.tensor([2 / 3, 1 / 3]).double().log() - 0.25
    assert torch.allclose(prior, expected)


def test_class_means_are_shrunk_by_empirical_bayes() -> None:
    # m = 0, P = 1/8, e = tr(P Σ) = 1. Distances: 4/8 both, less e / n: 0 and max(-1/2, 0), so
    # τ = 0 and all means are their centre, where every class has the same score.
    found = head_of(make("lda", standardise=False, shrinkage=0), LINE, [0, 0, 1])
    assert torch.allclose(found.weight, torch.zeros(2, 1).double())
    # Ten times as far: distances 400/8 = 50, τ = mean(49.5, 49) = 49.25, and with n = (2, 1) the
    # means keep 98.5/99.5 and 49.25/50.25.
    far = [[18.0], [22.0], [-20.0]]
    # Σ = (18² + 22² - 2·20²) / 1 = 8.
    kept = [98.5 / 99.5, 49.25 / 50.25]
    w = head_of(make("lda", standardise=False, shrinkage=0), far, [0, 0, 1]).weight
    assert float(w[0] / w[1]) == pytest.approx(-kept[0] / kept[1], rel=1e-9)


def test_covariance_is_shrunk_to_its_trace() -> None:
    # Class 0 is (±1, 0), class 1 (3, ±2): Σ = diag(2, 8) / 2 = diag(1, 4), trace / d = 2.5; with
    # s = ½ it is diag(1.75, 3.25). The difference of the means is (3, 0), of the class vectors
    # 3 / 1.75 on the first axis.
    x, y = [[-1.0, 0.0], [1.0, 0.0], [3.0, -2.0], [3.0, 2.0]], [0, 0, 1, 1]
    lda = make("lda", standardise=False, shrinkage=0.5, shrink_means=False)
    w = head_of(lda, x, y).weight
    # t: between = Σ w̄ μ = ½ · 3 · 3/1.75, within = 2 · (1.5/1.75)² · 1, so t = 1.75.
    assert torch.allclose(w[1] - w[0], torch.tensor([3.0, 0.0]).double(), atol=1e-12)


def test_nearest_mean_by_hand() -> None:
    x = [[3.0, 4.0], [-5.0, 0.0]]
    w = head_of(make("ncm", standardise=False), x, [0, 1]).weight
    assert torch.allclose(w / -w[1, 0], torch.tensor([[0.6, 0.8], [-1.0, 0.0]]).double())


def test_logits_are_no_further_apart_than_the_surest() -> None:
    # One sample a class has no deviation, so t would be infinite. Two classes: the difference of
    # logits between the two samples is 30.
    x = torch.tensor([[3.0, 4.0], [-5.0, 0.0]]).double()
    found = head_of(make("ncm", standardise=False), x.tolist(), [0, 1])
    z = x @ found.weight.T
    assert float((z[0, 0] - z[0, 1]) - (z[1, 0] - z[1, 1])) == pytest.approx(30.0)


def gaussians(seed: int = 0, d: int = 7) -> tuple[Tensor, Tensor]:
    """Return a long tail of four classes, features far from zero and of different sizes."""
    draw = np.random.default_rng(seed)
    y = np.repeat(np.arange(4), [40, 15, 5, 2])
    x = draw.normal(size=(len(y), d)) + draw.normal(size=(4, d))[y]
    x = (x * np.linspace(0.1, 10, d) + 3).astype(np.float32)
    return torch.from_numpy(x), torch.from_numpy(y)


def pooled_ridge(x: np.ndarray, y: np.ndarray, rho: float) -> np.ndarray:
    """Return W of the class-balanced ridge, from the samples themselves."""
    z = (x - x.mean(0)) / x.std(0)
    weight = 1 / np.bincount(y)[y]
    a = (z * weight[:, None]).T @ z
    b = np.stack([z[y == c].mean(0) for c in range(4)], axis=1)
    w: np.ndarray = np.linalg.solve(a + rho * np.trace(a) / len(a) * np.eye(len(a)), b).T / x.std(0)
    return w


def pooled_lda(x: np.ndarray, y: np.ndarray, s: float) -> np.ndarray:
    """Return the class vectors of LDA with shrunk means, from the samples themselves."""
    z = (x - x.mean(0)) / x.std(0)
    mu, n, d = np.stack([z[y == c].mean(0) for c in range(4)]), np.bincount(y), z.shape[1]
    apart = z - mu[y]
    cov = apart.T @ apart / (len(y) - 4)
    p = np.linalg.inv((1 - s) * cov + s * np.trace(cov) / d * np.eye(d))
    m, e = mu.mean(0), np.trace(p @ cov)
    far = np.einsum("cd,de,ce->c", mu - m, p, mu - m)
    tau = np.maximum(far - e / n, 0).mean()
    w: np.ndarray = (m + (n / (n + e / tau))[:, None] * (mu - m)) @ p / x.std(0)
    return w


@pytest.mark.parametrize("name", ["ridge", "lda"])
def test_sums_give_what_all_samples_in_one_place_give(name: str) -> None:
    x, y = gaussians()
    parts = np.array_split(np.random.default_rng(1).permutation(len(y)), 9)
    found = head_of(make(name), x.tolist(), y.tolist(), parts, classes=4).weight.numpy()
    inputs, labels = x.double().numpy(), y.numpy()
    expected = (
        pooled_ridge(inputs, labels, 1.0) if name == "ridge" else pooled_lda(inputs, labels, 0.3)
    )
    # Up to t, the one factor of all logits.
    factor = (found * expected).sum() / (expected**2).sum()
    assert factor > 0
    np.testing.assert_allclose(found, factor * expected, rtol=0, atol=1e-10 * np.abs(found).max())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", ["ridge", "lda", "ncm"])
def test_the_partition_changes_nothing(name: str, bias: bool) -> None:
    if name == "lda" and not bias:
        return
    x, y = gaussians()
    order = np.random.default_rng(2).permutation(len(y))
    partitions = [
        [order],
        np.array_split(order, 5),
        [order[:30], order[30:]],  # and one client of it split in two:
        [order[:30], order[30:37], order[37:]],
        [np.flatnonzero(y == c) for c in range(4)],
        [[i] for i in range(len(y))],
    ]
    heads = [head_of(make(name), x.tolist(), y.tolist(), p, 4, bias) for p in partitions]
    for other in heads[1:]:
        scale = float(heads[0].weight.abs().max())
        assert float((other.weight - heads[0].weight).abs().max()) < 1e-10 * scale
        assert other.bias is not None and heads[0].bias is not None
        assert float((other.bias - heads[0].bias).abs().max()) < 1e-10 * scale


@pytest.mark.parametrize("name", ["ridge", "lda"])
def test_a_sketch_that_is_wide_enough_changes_little(name: str) -> None:
    # Twelve features of which six are copies: six columns see all of them, and so does the head.
    x, y = gaussians(d=6)
    x = torch.cat([x, x], dim=1)
    exact = head_of(make(name), x.tolist(), y.tolist(), classes=4).weight
    wide = head_of(make(name, rank=7), x.tolist(), y.tolist(), classes=4).weight
    assert float((wide - exact).abs().max()) < 1e-5 * float(exact.abs().max())
    narrow = head_of(make(name, rank=2), x.tolist(), y.tolist(), classes=4).weight
    assert bool(torch.isfinite(narrow).all())


def test_what_a_sketch_misses_lies_across_it() -> None:
    # A = diag(4, 3, 2) and Ω = e₁ see 4 of the trace of 9: 5 are left for e₂ and e₃.
    a = torch.diag(torch.tensor([4.0, 3.0, 2.0]).double())
    test = torch.tensor([[2.0], [0.0], [0.0]]).double()
    s = Standard(
        counts=torch.tensor([1.0]).double(),
        means=torch.zeros(1, 3).double(),
        weights=torch.ones(1).double(),
        energies=a.diagonal(),
        image=a @ test,
        test=test,
    )
    assert torch.allclose(s.moments, torch.diag(torch.tensor([4.0, 2.5, 2.5]).double()))


# Three classes in ten features, of which A mixes each with the next one.
def chained() -> tuple[list[list[float]], list[int]]:
    draw = np.random.default_rng(3)
    y = np.repeat(np.arange(3), 40)
    x = draw.normal(size=(120, 10))
    x[:, 1:] += 0.8 * x[:, :-1]
    x[np.arange(120), y] += 2.0
    return x.tolist(), y.tolist()


def aimed_sums(blocks: int) -> tuple[FeatureSums, list[int]]:
    """Return the sums with so many blocks, and the width of each."""
    x, y = chained()
    widths: list[int] = []

    def aim(sums: FeatureSums) -> Tensor:
        block = aimed(sums, standardise=True, bias=True)
        widths.append(block.shape[1])
        return block

    data = tiny.federation(x, y, [range(60), range(60, 120)], classes=3)
    # More features than that, so that blocks are less than the triangle, would hide the end.
    wanted = Wanted(blocks=blocks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Wanted, "aims", lambda *_: True)
        return asked(identity(10, 3), data, wanted, aim), widths


def test_the_first_block_spans_the_class_means_and_others_what_comes_of_them() -> None:
    sums, widths = aimed_sums(2)
    assert sums.test is not None and sums.image is not None
    # Means of standardised features add up to zero: two directions of three classes.
    assert widths == [2, 2]
    shift, scale = frame(sums, True, True)
    s = standardised(sums, shift, scale)
    directions = sums.test * scale[:, None]
    assert torch.allclose(directions.T @ directions, torch.eye(4).double(), atol=1e-6)
    first, second = directions[:, :2], directions[:, 2:]
    assert torch.allclose(first @ (first.T @ s.means.T), s.means.T, atol=1e-6)
    x = (torch.tensor(chained()[0]).double() - shift) / scale
    a = x.T @ x / 120
    left = a @ first - first @ (first.T @ a @ first)
    assert torch.allclose(second @ (second.T @ left), left, atol=1e-5)


@pytest.mark.parametrize("name", ["ridge", "lda"])
def test_with_every_block_an_aimed_head_gets_closer_to_the_exact_one(name: str) -> None:
    x, y = chained()
    chosen = make(name, balance=False) if name == "ridge" else make(name, shrink_means=False)
    exact = head_of(chosen, x, y, classes=3)
    apart = []
    for blocks in range(1, 6):
        weight = chosen.head(aimed_sums(blocks)[0]).weight
        # Only differences of classes are solved for.
        gap = (weight - weight.mean(0)) - (exact.weight - exact.weight.mean(0))
        apart.append(float(gap.norm() / exact.weight.norm()))
    # Five blocks of two are all ten directions; the images are of float32.
    assert apart[0] > apart[1] > apart[2] > apart[4]
    assert apart[4] < 1e-5


def test_no_block_is_asked_for_where_all_directions_are_known() -> None:
    sums, widths = aimed_sums(9)
    assert widths == [2, 2, 2, 2, 2, 0]
    assert sums.test is not None and sums.test.shape == (10, 10)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", ["ridge", "lda", "ncm"])
def test_a_class_that_nobody_holds_is_never_predicted(name: str, bias: bool) -> None:
    if name == "lda" and not bias:
        return
    x, y = gaussians()
    found = head_of(make(name), x.tolist(), y.tolist(), classes=6, bias=bias)
    assert found.bias is not None
    assert bool(torch.isfinite(found.weight).all() and torch.isfinite(found.bias).all())
    anything = 1e3 * torch.randn(2000, 7, generator=torch.Generator().manual_seed(0)).double()
    z = anything @ found.weight.T + found.bias
    assert int(z.argmax(dim=1).max()) < 4
    below = z[:, :4].mean(dim=1) - (10.0 if bias else 0.0)
    assert torch.allclose(z[:, 5], below, rtol=1e-9, atol=1e-6)


def test_a_feature_that_does_not_vary_does_no_harm() -> None:
    x, y = gaussians()
    flat = torch.cat([x, torch.full((len(x), 1), 5.0)], dim=1)
    for name in ("ridge", "lda", "ncm"):
        found = head_of(make(name), flat.tolist(), y.tolist(), classes=4)
        assert bool(torch.isfinite(found.weight).all())
        assert float(found.weight[:, 7].abs().max()) < 1e-6


def test_one_class_or_one_sample_is_enough() -> None:
    for name in ("ridge", "lda", "ncm"):
        for x, y in (([[1.0, 2.0]], [0]), ([[1.0, 2.0], [3.0, 1.0]], [1, 1])):
            found = head_of(make(name), x, y)
            assert found.bias is not None
            assert bool(torch.isfinite(found.weight).all() and torch.isfinite(found.bias).all())
            z = torch.tensor(x).double() @ found.weight.T + found.bias
            assert z.argmax(dim=1).tolist() == y


def test_two_sketches_are_refused() -> None:
    with pytest.raises(FedtailError, match=r"random \(rank = 4\) or aimed \(blocks = 3\)"):
        make("lda", rank=4, blocks=3)


def test_what_cannot_carry_a_head_is_refused() -> None:
    cosine = SplitModel(torch.nn.Sequential(torch.nn.Identity(), CosineHead(2, 3)), "1")
    with pytest.raises(FedtailError, match=r"linear classifier \(nn.Linear\) .*, not CosineHead"):
        make("ncm").carried_by(cosine)
    with pytest.raises(FedtailError, match="'lda' needs a classifier with a bias"):
        make("lda").carried_by(identity(2, 3, bias=False))
    assert make("ridge").carried_by(identity(2, 3, bias=False)).bias is None
