"""AutoAugment by hand, on images of a few pixels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedtail import Augment
from fedtail.data.auto_augment import CHANGES_BY_NAME, POLICY, auto_augmented, rotated


def changed(name: str, x: Tensor, m: float) -> Tensor:
    """Return one image under one change."""
    return CHANGES_BY_NAME[name](x, torch.tensor([m]))


def image(*rows: list[float]) -> Tensor:
    return torch.tensor([[list(rows)]])


class TestChanges:
    def test_values_by_hand(self) -> None:
        x = image([0.0, 0.2], [0.4, 1.0])
        close = torch.testing.assert_close
        close(changed("invert", x, 0.5), image([1.0, 0.8], [0.6, 0.0]))
        close(changed("solarize", x, 0.5), image([0.0, 0.2], [0.4, 0.0]))  # from 0.5 on
        close(changed("brightness", x, -1.0), 0.1 * x)
        # The mean is 0.4: 0.4 + 1.9 (x - 0.4).
        close(changed("contrast", x, 1.0), 0.4 + 1.9 * (x - 0.4))
        close(changed("colour", x, 1.0), x)  # one channel is grey already
        close(changed("autocontrast", 0.25 + x / 2, 0.0), x)
        close(
            changed("autocontrast", torch.full((1, 1, 2, 2), 0.3), 0.0),
            torch.full((1, 1, 2, 2), 0.3),
        )

    def test_colour_goes_away_from_grey(self) -> None:
        x = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)
        # Grey is 0.299; a tenth of the way from there.
        expected = 0.299 + 0.1 * (x - 0.299)
        torch.testing.assert_close(changed("colour", x, -1.0), expected)

    def test_posterize_keeps_bits(self) -> None:
        # 7/9 of the way: 8 - round(7 / 2.25) = 5 bits; 255 becomes 248, 7 becomes 0.
        x = image([255 / 255, 7 / 255])
        torch.testing.assert_close(changed("posterize", x, 7 / 9), image([248 / 255, 0.0]))

    def test_sharpness_leaves_the_border(self) -> None:
        # One bright pixel in the middle: smoothed it is 5/13; 1.9 of the way from there.
        x = torch.zeros(1, 1, 3, 3)
        x[0, 0, 1, 1] = 1.0
        found = changed("sharpness", x, 1.0)
        assert float(found[0, 0, 1, 1]) == pytest.approx(5 / 13 + 1.9 * 8 / 13)
        assert float(found.sum()) == pytest.approx(float(found[0, 0, 1, 1]))
        torch.testing.assert_close(changed("sharpness", image([0.1, 0.9]), 1.0), image([0.1, 0.9]))

    def test_equalize_spreads_levels(self) -> None:
        # 512 pixels of levels 100 and 101, as many of each: step (512 - 256) // 255 = 1, so level
        # 100 becomes 0 and 101 becomes (256 + 0) // 1 = 256, at most 255.
        x = torch.tensor([100.0, 101.0]).repeat(256).view(1, 1, 16, 32) / 255
        found = changed("equalize", x, 0.0)
        torch.testing.assert_close(found, torch.tensor([0.0, 1.0]).repeat(256).view(1, 1, 16, 32))
        few = image([0.1, 0.9])  # too few pixels for a step: as it is
        assert torch.equal(changed("equalize", few, 0.0), few)

    def test_moves_by_hand(self) -> None:
        x = image([0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0])
        # A third of the side is one pixel: m = (1/3) / (150/331).
        one = 331 / 450
        torch.testing.assert_close(
            changed("translate_x", x, one)[0, 0, 1], torch.tensor([1.0, 0, 0])
        )
        down = changed("translate_y", x, -one)[0, 0]
        torch.testing.assert_close(down[:, 1], torch.tensor([0.0, 0, 1]))
        corner = image([1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0])
        turned = rotated(corner, torch.tensor([90.0]))
        assert float(turned.sum()) == pytest.approx(1.0, abs=1e-5)
        assert float(turned[0, 0, 2, 0]) == pytest.approx(1.0, abs=1e-5)
        torch.testing.assert_close(changed("shear_y", x, 0.0), x)

    def test_every_change_keeps_shape_and_range(self) -> None:
        x = torch.rand(2, 3, 8, 6, generator=torch.Generator().manual_seed(0))
        for name in CHANGES_BY_NAME:
            found = CHANGES_BY_NAME[name](x, torch.tensor([1.0, -1.0]))
            assert found.shape == x.shape
            assert bool(found.isfinite().all())


class TestPolicy:
    def test_each_pair_is_drawn_and_done_with_its_probability(self) -> None:
        # Pair 0 inverts with probability 0.1, and changes contrast with 0.2: a flat image keeps its
        # value under contrast, so inverted ones are those of the first draw below 0.1.
        x = torch.full((3, 1, 4, 4), 0.2)
        draws = torch.tensor([[0.0] * 3, [0.05, 0.15, 0.09], [0.9] * 3, [0.0] * 3, [0.0] * 3])
        found = auto_augmented(x, draws)[:, 0, 0, 0]
        torch.testing.assert_close(found, torch.tensor([0.8, 0.2, 0.8]))
        assert float(x.max()) == pytest.approx(0.2)  # what was given stays

    def test_the_sense_is_drawn(self) -> None:
        # The last pair: translate_y with 0.7 at full strength, up or down.
        x = torch.zeros(2, 1, 9, 9)
        x[:, 0, 4, 4] = 1.0
        last = torch.tensor([[0.99, 0.99], [0.0, 0.0], [0.95, 0.95], [0.1, 0.9], [0.0, 0.0]])
        found = auto_augmented(x, last)[:, 0]
        rows = found.sum(dim=2).argmax(dim=1)
        assert rows[0] < 4 < rows[1]

    def test_there_are_25_pairs_of_known_changes(self) -> None:
        assert len(POLICY) == 25
        for pair in POLICY:
            for name, probability, level in pair:
                assert name in CHANGES_BY_NAME
                assert 0 <= probability <= 1
                assert 0 <= level <= 9


class TestAugment:
    def test_images_are_changed_as_they_were_before_normalisation(self) -> None:
        # Mean 0.5, deviation 0.25: a flat 0.2 is -1.2; inverted, 0.8 is 1.2.
        constants = torch.full((1, 1, 1, 1), 0.5), torch.full((1, 1, 1, 1), 0.25)
        augment = Augment(auto=True)
        draws = augment.draws(1, (4, 4), torch.Generator().manual_seed(0))
        policy = torch.tensor([[0.0], [0.0], [0.9], [0.0], [0.0]])
        x = torch.full((1, 1, 4, 4), -1.2)
        found = augment.changed(x, draws._replace(policy=policy), constants)
        torch.testing.assert_close(found, torch.full((1, 1, 4, 4), 1.2))

    def test_numbers_beyond_0_to_1_keep_their_range(self) -> None:
        # From -4 to 12: inverted they change places.
        x = torch.tensor([-4.0, 12.0]).view(1, 1, 1, 2)
        augment = Augment(auto=True)
        draws = augment.draws(1, (1, 2), torch.Generator())
        policy = torch.tensor([[0.0], [0.0], [0.9], [0.0], [0.0]])
        found = augment.changed(x, draws._replace(policy=policy))
        torch.testing.assert_close(found.flatten(), torch.tensor([12.0, -4.0]))

    def test_angles_are_within_bounds(self) -> None:
        augment = Augment(rotate=15)
        angles = augment.draws(500, (4, 4), torch.Generator().manual_seed(0)).angles
        assert angles is not None
        assert -15 <= float(angles.min()) < -14
        assert 14 < float(angles.max()) <= 15
        assert augment.on
        assert Augment(auto=True).on
        x = torch.rand(4, 1, 5, 5)
        assert not torch.equal(augment(x, torch.Generator().manual_seed(0)), x)

    def test_draws_of_other_changes_stay_what_they_were(self) -> None:
        one = Augment(crop=2, flip=True, cutout=3).draws(
            6, (8, 8), torch.Generator().manual_seed(1)
        )
        two = Augment(crop=2, flip=True, cutout=3, rotate=5, auto=True).draws(
            6, (8, 8), torch.Generator().manual_seed(1)
        )
        assert one.offsets is not None
        assert two.offsets is not None
        assert torch.equal(one.offsets, two.offsets)
        assert one.centres is not None
        assert two.centres is not None
        assert torch.equal(one.centres, two.centres)
