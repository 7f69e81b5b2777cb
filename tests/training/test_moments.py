"""Class moments: the pool of the clients' is the moments of the pooled samples."""

from __future__ import annotations

import pytest
import tiny
import torch
from torch import Tensor, nn

from fedtail.models import SplitModel
from fedtail.training.moments import Moments, class_moments, pooled, sample_features


def identity(width: int = 2, classes: int = 3) -> SplitModel:
    """Features are the inputs themselves."""
    return SplitModel(nn.Sequential(nn.Identity(), nn.Linear(width, classes)))


def groups_of(x: Tensor, y: list[int], parts: list[list[int]], classes: int) -> list[Moments]:
    data = tiny.federation(x.tolist(), y, parts, classes=classes)
    model = identity(x.shape[1], classes)
    return [class_moments(model, data.client(k)) for k in range(len(parts))]


def whole(triangle: Tensor, width: int) -> Tensor:
    upper = torch.triu_indices(width, width)
    matrix = triangle.new_zeros(width, width)
    matrix[upper[0], upper[1]] = triangle
    return matrix + matrix.triu(1).T


def test_moments_of_one_client_by_hand() -> None:
    # Class 0 has (1, 0) and (3, 4): mean (2, 2), deviations ∓(1, 2), covariance over n - 1 = 1:
    # [[2, 4], [4, 8]], of which the upper triangle is 2, 4, 8. Class 2 has one sample.
    x = torch.tensor([[1.0, 0.0], [5.0, 5.0], [3.0, 4.0]])
    (found,) = groups_of(x, [0, 2, 0], [[0, 1, 2]], 3)
    assert found.classes.tolist() == [0, 2]
    assert found.counts.tolist() == [2, 1]
    assert found.mean.tolist() == [[2.0, 2.0], [5.0, 5.0]]
    assert found.covariance.tolist() == [[2.0, 4.0, 8.0], [0.0, 0.0, 0.0]]
    assert found.mean.dtype == found.covariance.dtype == torch.float32


def test_a_client_without_samples_sends_no_rows() -> None:
    found = groups_of(torch.ones(1, 2), [0], [[0], []], 3)[1]
    assert [t.shape for t in found] == [(0,), (0,), (0, 2), (0, 3)]


def test_two_clients_pooled_by_hand() -> None:
    # One dimension. Client 0 has 0 and 2 (mean 1, variance 2), client 1 has 7 alone. Together
    # 0, 2, 7: mean 3, variance (9 + 1 + 16) / 2 = 13. By the formula: (1/2) 2 + (0/2) 0 +
    # (2/2) 1² + (1/2) 7² - (3/2) 3² = 1 + 1 + 24.5 - 13.5 = 13.
    told = groups_of(torch.tensor([[0.0], [2.0], [7.0]]), [1, 1, 1], [[0, 1], [2]], 3)
    pool = pooled([t._asdict() for t in told], 3)
    assert pool.classes.tolist() == [1]
    assert pool.counts.tolist() == [3]
    assert pool.mean.tolist() == [[3.0]]
    assert pool.covariance.tolist() == [[13.0]]


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
    told = groups_of(x, y, parts, 3)
    pool = pooled([t._asdict() for t in told], 3)

    # Assert: to 1e-5 of the size of the matrix, and by the formula as it is printed.
    expected = torch.cov(x[:14].double().T)
    found = whole(pool.covariance[0], 6)
    assert float((found - expected).norm() / expected.norm()) < 1e-5
    n = torch.tensor([9.0, 1.0, 4.0], dtype=torch.float64)
    mu = torch.stack([x[p].double().mean(dim=0) for p in (slice(9), slice(9, 10), slice(10, 14))])
    each = [torch.cov(x[:9].double().T), torch.zeros(6, 6), torch.cov(x[10:14].double().T)]
    mean = n @ mu / 14
    printed = sum(((k - 1) / 13 * s for k, s in zip(n, each, strict=True)), torch.zeros(6, 6))
    printed = printed + (mu.T * n) @ mu / 13 - 14 / 13 * torch.outer(mean, mean)
    assert torch.allclose(printed, expected, rtol=1e-8, atol=1e-8)
    assert torch.allclose(pool.mean[0], mean, rtol=1e-6)
    # A class of one sample in the whole federation has no covariance.
    assert pool.counts.tolist() == [14, 1]
    assert pool.covariance[1].tolist() == [0.0] * 21


def test_rows_of_classes_that_do_not_exist_are_left_out() -> None:
    told = groups_of(torch.tensor([[1.0], [2.0]]), [0, 1], [[0, 1]], 2)[0]._asdict()
    assert pooled([told], 1).classes.tolist() == [0]


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


def test_a_singular_covariance_is_safe() -> None:
    # Rank 1, and rounding has made the second eigenvalue -1e-9: all draws lie on the line (1, 2).
    triangle = torch.tensor([[1.0, 2.0, 4.0 - 1e-9]], dtype=torch.float64)
    told = Moments(
        torch.tensor([0]), torch.tensor([2]), torch.zeros(1, 2, dtype=torch.float64), triangle
    )
    drawn = sample_features(told, 50, torch.Generator().manual_seed(0))[0]
    assert bool(torch.isfinite(drawn).all())
    assert torch.allclose(drawn[:, 1], 2 * drawn[:, 0], atol=1e-4)
    assert float(drawn[:, 0].std()) > 0.5
