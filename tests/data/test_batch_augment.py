"""One change for a whole batch: every kind, by hand where the numbers are whole."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedtail.data.batch_augment import CHANGES, one_change


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(n: int = 4) -> Tensor:
    return torch.rand(n, 3, 8, 8, generator=seeded(1))


@pytest.mark.parametrize("change", CHANGES)
def test_the_same_change_for_every_image(change: str) -> None:
    one = images(1)
    x = one.expand(3, -1, -1, -1)
    for seed in range(5):
        changed = one_change(x, seeded(seed), change)
        assert changed.shape == x.shape
        # The mean of a picture may be added up in another order in another place of the batch.
        torch.testing.assert_close(changed[0], changed[2], rtol=0, atol=1e-6)
        assert torch.equal(changed, one_change(x, seeded(seed), change))
        assert bool(torch.isfinite(changed).all())
    assert torch.equal(one, images(1))
    assert any(not torch.equal(one_change(one, seeded(s), change), one) for s in range(5))


def test_every_change_is_drawn() -> None:
    # A stream of calls gives all six kinds; what is drawn does not depend on the kind.
    generator, other = seeded(0), seeded(0)
    for _ in range(50):
        one_change(images(), generator)
        one_change(images(), other, "flip")
    assert torch.equal(generator.get_state(), other.get_state())


def test_crop_shifts_by_whole_pixels() -> None:
    # 8 pixels: at most one in each direction, what comes in is zero.
    x, found = images(), set()
    for seed in range(80):
        changed = one_change(x, seeded(seed), "crop")
        for down in (-1, 0, 1):
            for right in (-1, 0, 1):
                shifted = torch.zeros(4, 3, 10, 10)
                shifted[..., 1:9, 1:9] = x
                shifted = shifted[..., 1 + down : 9 + down, 1 + right : 9 + right]
                if torch.allclose(changed, shifted, atol=1e-5):
                    found.add((down, right))
    assert len(found) == 9


def test_flip_mirrors() -> None:
    x = images()
    changed = [one_change(x, seeded(seed), "flip") for seed in range(10)]
    assert any(torch.equal(c, x) for c in changed)
    assert any(torch.equal(c, x.flip(-1)) for c in changed)


def test_cutout_clears_half_of_each_side() -> None:
    # A 4 by 4 square of the 64 pixels, less where it hangs over the border.
    cleared = [
        int((one_change(images() + 1, seeded(seed), "cutout")[0, 0] == 0).sum())
        for seed in range(40)
    ]
    assert max(cleared) == 16
    assert min(cleared) < 16


def test_vectors_are_left_alone() -> None:
    x = torch.ones(2, 5)
    assert one_change(x, seeded(0)) is x
