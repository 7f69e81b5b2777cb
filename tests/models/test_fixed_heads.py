"""Classifiers whose class vectors no gradient moves."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedtail import FedtailError
from fedtail.models.fixed_heads import (
    FixedHead,
    PrototypeHead,
    SimplexHead,
    simplex,
    sparse_simplex,
)


def frame_of(classes: int) -> Tensor:
    """Return the products that a simplex frame has: 1, and −1/(C−1) between two."""
    return torch.full((classes, classes), -1 / (classes - 1)).fill_diagonal_(1.0)


def smallest_angle(rows: Tensor) -> float:
    """Return the mean over rows of the smallest angle with another one."""
    cosines = (rows @ rows.T).fill_diagonal_(-1.0)
    return float(cosines.amax(dim=1).clamp(-1, 1).acos().mean())


class TestSimplex:
    def test_three_classes_by_hand(self) -> None:
        # √(3/2) (2/3, -1/3, -1/3) = (0.816497, -0.408248, -0.408248), and its rotations.
        expected = torch.tensor([[0.816497, -0.408248, -0.408248]])
        torch.testing.assert_close(simplex(3)[:1], expected, rtol=0, atol=1e-6)

    @pytest.mark.parametrize("classes", [2, 3, 10])
    def test_the_gram_matrix_is_exact(self, classes: int) -> None:
        rows = simplex(classes)
        torch.testing.assert_close(rows @ rows.T, frame_of(classes), rtol=0, atol=1e-6)

    def test_without_zeros_a_rotated_frame_is_a_frame(self) -> None:
        rows = sparse_simplex(4, 7, sparsity=0.0, spread=False)
        torch.testing.assert_close(rows @ rows.T, frame_of(4), rtol=0, atol=1e-6)

    @pytest.mark.parametrize("spread", [False, True])
    def test_six_of_ten_numbers_of_a_row_are_zero(self, spread: bool) -> None:
        rows = sparse_simplex(5, 10, sparsity=0.6, spread=spread)
        assert (rows == 0).sum(dim=1).tolist() == [6] * 5
        torch.testing.assert_close(rows.norm(dim=1), torch.ones(5), rtol=0, atol=1e-6)

    def test_spreading_widens_the_smallest_angles(self) -> None:
        before = smallest_angle(sparse_simplex(10, 64, 0.6, spread=False))
        after = smallest_angle(sparse_simplex(10, 64, 0.6))
        # No ten unit vectors are further apart than acos(-1/9), 96.4 degrees.
        assert before + 0.1 < after <= torch.tensor(-1 / 9).acos() + 1e-4

    def test_everybody_makes_the_same_without_the_global_stream(self) -> None:
        stream = torch.get_rng_state()
        first = sparse_simplex(4, 6, 0.6)
        torch.rand(3)
        assert torch.equal(first, sparse_simplex(4, 6, 0.6))
        torch.set_rng_state(stream)

    def test_a_row_keeps_at_least_one_number(self) -> None:
        assert (sparse_simplex(2, 2, 0.99) != 0).sum(dim=1).tolist() == [1, 1]

    def test_more_classes_than_features_are_refused(self) -> None:
        with pytest.raises(FedtailError, match=r"5 classes needs as many features.*has 4"):
            sparse_simplex(5, 4, 0.6)


class TestSimplexHead:
    def head(self, classes: int = 2) -> SimplexHead:
        """Return a head whose projection is the identity."""
        made = SimplexHead(classes, classes, scale=10.0)
        with torch.no_grad():
            made.projection.weight.copy_(torch.eye(classes))
            made.projection.bias.zero_()
        return made

    def test_by_hand(self) -> None:
        # h = (3, 4) has the direction (0.6, 0.8); the frame is ±(1, -1)/√2:
        # z = 10 (0.6 - 0.8)/√2 = -1.414214 and its opposite.
        z = self.head()(torch.tensor([[3.0, 4.0]]))
        torch.testing.assert_close(z, torch.tensor([[-(2**0.5), 2**0.5]]), rtol=0, atol=1e-5)

    def test_the_scale_learns_and_the_frame_does_not(self) -> None:
        head = self.head(3)
        torch.autograd.backward(head(torch.tensor([[1.0, 2.0, 3.0]]))[0, 0])
        assert head.scale.grad is not None
        assert float(head.scale.grad) != 0
        assert not head.frame.requires_grad
        assert head.state_dict().keys() == {"scale", "projection.weight", "projection.bias"}
        fixed = SimplexHead(3, 3, learned=False)
        assert fixed.state_dict().keys() == {"projection.weight", "projection.bias"}

    def test_permuting_classes_permutes_logits(self) -> None:
        head, x, order = self.head(3), torch.randn(4, 3), torch.tensor([2, 0, 1])
        before = head(x)
        with torch.no_grad():
            head.projection.weight.copy_(head.projection.weight[order])
        torch.testing.assert_close(head(x), before[:, order])


class TestPrototypeHead:
    def test_prototypes_start_at_right_angles(self) -> None:
        rows = PrototypeHead(6, 4).prototypes
        torch.testing.assert_close(rows @ rows.T, torch.eye(4), rtol=0, atol=1e-5)

    def test_more_classes_than_features_are_unit_vectors(self) -> None:
        rows = PrototypeHead(2, 5).prototypes
        torch.testing.assert_close(rows.norm(dim=1), torch.ones(5))

    def test_by_hand(self) -> None:
        # The cosines of (3, 4) with (1, 0) and (0, 1) are 0.6 and 0.8.
        head = PrototypeHead(2, 2, scale=5.0)
        head.prototypes.copy_(torch.eye(2))
        torch.testing.assert_close(head(torch.tensor([[3.0, 4.0]])), torch.tensor([[3.0, 4.0]]))
        assert head.state_dict().keys() == {"scale", "prototypes"}


def test_a_fixed_head_has_nothing_to_train_or_draw() -> None:
    rows = torch.tensor([[1.0, 2.0]])
    head = FixedHead(rows)
    head.reset_parameters()
    assert torch.equal(head.weight, rows)
    assert not head.weight.requires_grad
    assert float(head(torch.tensor([[3.0, 4.0]]))) == 11.0
    assert "2, 5" in repr(PrototypeHead(2, 5))
