"""Class moments: the pool of the clients' is the moments of the pooled samples."""

from __future__ import annotations

import pytest
import tiny
import torch
from torch import Tensor, nn

from fedtail.forms import ByClass, Form, Like
from fedtail.models import SplitModel
from fedtail.protocol import Payload, Update, grouped
from fedtail.reduce import reduced
from fedtail.training.moments import ClassSums, Moments, class_sums, pooled, sample_features


def identity(width: int = 2, classes: int = 3) -> SplitModel:
    """Features are the inputs themselves."""
    return SplitModel(nn.Sequential(nn.Identity(), nn.Linear(width, classes)))


def sums_of(x: Tensor, y: list[int], parts: list[list[int]], classes: int) -> list[ClassSums]:
    data = tiny.federation(x.tolist(), y, parts, classes=classes)
    model = identity(x.shape[1], classes)
    return [class_sums(model, data.client(k)) for k in range(len(parts))]


def pool(told: list[ClassSums], classes: int) -> Moments:
    """Return the moments of all, from sums over clients as an engine makes them."""
    width = told[0].sums.shape[1]
    rows = {
        "counts": Like((), torch.int64),
        "sums": Like((width,), torch.float64),
        "products": Like((width * (width + 1) // 2,), torch.float64),
    }
    form = Form().group("moments", rows, ByClass(classes, mean=False))
    sent = [Update(k, Payload(grouped("moments", t._asdict()))) for k, t in enumerate(told)]
    return pooled(reduced(sent, form)["moments"])


def whole(triangle: Tensor, width: int) -> Tensor:
    upper = torch.triu_indices(width, width)
    matrix = triangle.new_zeros(width, width)
    matrix[upper[0], upper[1]] = triangle
    return matrix + matrix.triu(1).T


def test_sums_of_one_client_by_hand() -> None:
    # Class 0 has (1, 0) and (3, 4): the sum is (4, 4), the products 1 + 9, 0 + 12, 0 + 16.
    x = torch.tensor([[1.0, 0.0], [5.0, 5.0], [3.0, 4.0]])
    (found,) = sums_of(x, [0, 2, 0], [[0, 1, 2]], 3)
    assert found.classes.tolist() == [0, 2]
    assert found.counts.tolist() == [2, 1]
    assert found.sums.tolist() == [[4.0, 4.0], [5.0, 5.0]]
    assert found.products.tolist() == [[10.0, 12.0, 16.0], [25.0, 25.0, 25.0]]
    assert found.sums.dtype == found.products.dtype == torch.float64
    # Mean (2, 2), deviations ∓(1, 2), covariance over n - 1 = 1: [[2, 4], [4, 8]].
    moments = pool([found], 3)
    assert moments.mean.tolist() == [[2.0, 2.0], [5.0, 5.0]]
    assert moments.covariance.tolist() == [[2.0, 4.0, 8.0], [0.0, 0.0, 0.0]]


def test_a_client_without_samples_sends_no_rows() -> None:
    found = sums_of(torch.ones(1, 2), [0], [[0], []], 3)[1]
    assert [t.shape for t in found] == [(0,), (0,), (0, 2), (0, 3)]


def test_two_clients_pooled_by_hand() -> None:
    # One dimension: 0 and 2 at client 0, 7 at client 1. Sum 9, squares 53: mean 3, variance
    # (53 - 3 · 9) / 2 = 13.
    told = sums_of(torch.tensor([[0.0], [2.0], [7.0]]), [1, 1, 1], [[0, 1], [2]], 3)
    moments = pool(told, 3)
    assert moments.classes.tolist() == [1]
    assert moments.counts.tolist() == [3]
    assert moments.mean.tolist() == [[3.0]]
    assert moments.covariance.tolist() == [[13.0]]


@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_the_pool_is_the_covariance_of_the_pooled_features(offset: float) -> None:
    # Prepare: clients with 9, 1, 4 and 0 samples of class 0, far from the origin or not; the means
    # of the clients differ, and all of class 1 is one sample.
    g = torch.Generator().manual_seed(0)
    x = torch.randn(15, 6, generator=g) * torch.logspace(-1, 1, 6) + offset
    x[9:] += 3
    y = [0] * 14 + [1]
    parts = [list(range(9)), [9], [10, 11, 12, 13], [14]]

    # Execute
    moments = pool(sums_of(x, y, parts, 3), 3)

    # Assert: double precision less the digits that the offset takes, of 100² / 0.1² at most.
    expected = torch.cov(x[:14].double().T)
    found = whole(moments.covariance[0], 6)
    assert float((found - expected).norm() / expected.norm()) < 1e-10
    assert torch.allclose(moments.mean[0], x[:14].double().mean(dim=0), rtol=1e-12)
    # A class of one sample in the whole federation has no covariance.
    assert moments.counts.tolist() == [14, 1]
    assert moments.covariance[1].tolist() == [0.0] * 21


def test_no_sharing_out_changes_the_moments() -> None:
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(12, 4, generator=g), [0, 1] * 6
    splits = [[list(range(12))], [[0, 3, 5], [1, 2, 4, 6], [], [7, 8, 9, 10, 11]]]
    one, other = (pool(sums_of(x, y, parts, 2), 2) for parts in splits)
    torch.testing.assert_close(one.covariance, other.covariance, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(one.mean, other.mean, rtol=1e-12, atol=1e-12)


def test_virtual_features_have_the_moments() -> None:
    # 20,000 draws: the error of a mean is about 2 / sqrt(20000) = 0.014, of a covariance about
    # 4 · sqrt(2 / 20000) = 0.04.
    covariance = torch.tensor([[2.0, 1.0, 4.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    mean = torch.tensor([[1.0, -1.0], [3.0, 4.0]], dtype=torch.float64)
    told = Moments(torch.tensor([0, 2]), torch.tensor([9, 1]), mean, covariance)
    drawn = sample_features(told, 20_000, torch.Generator().manual_seed(0))
    assert drawn.shape == (2, 20_000, 2)
    assert torch.allclose(drawn[0].mean(dim=0), mean[0].float(), atol=0.06)
    assert torch.allclose(torch.cov(drawn[0].T), whole(covariance[0], 2).float(), atol=0.16)
    # No covariance: every draw is the mean.
    assert torch.equal(drawn[1], mean[1].float().expand(20_000, 2))


def test_draws_by_hand() -> None:
    # [[4, 2], [2, 5]] = UᵀU with U = [[2, 1], [0, 2]]: a draw is (2 z₁, z₁ + 2 z₂).
    triangle = torch.tensor([[4.0, 2.0, 5.0]], dtype=torch.float64)
    mean = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    drawn = sample_features(
        Moments(torch.tensor([0]), torch.tensor([9]), mean, triangle),
        3,
        torch.Generator().manual_seed(0),
    )[0]
    z = torch.randn(3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    wanted = mean + torch.stack([2 * z[:, 0], z[:, 0] + 2 * z[:, 1]], dim=1)
    assert torch.allclose(drawn, wanted.float(), atol=1e-6)


@pytest.mark.parametrize("error", [0.0, 1e-9, 1e-7])
def test_a_singular_covariance_is_safe(error: float) -> None:
    # Rank 1, and rounding has made the second eigenvalue about -error / 5: all draws lie on (1, 2).
    triangle = torch.tensor([[1.0, 2.0, 4.0 - error]], dtype=torch.float64)
    told = Moments(
        torch.tensor([0]), torch.tensor([2]), torch.zeros(1, 2, dtype=torch.float64), triangle
    )
    drawn = sample_features(told, 50, torch.Generator().manual_seed(0))[0]
    assert bool(torch.isfinite(drawn).all())
    assert torch.allclose(drawn[:, 1], 2 * drawn[:, 0], atol=1e-4)
    assert float(drawn[:, 0].std()) > 0.5
