"""Augmentation: crops, flips and cut-outs, one draw an image."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedtail.data.augment import Augment, normalised
from fedtail.errors import FedtailError


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def numbered(n: int = 200, side: int = 4) -> Tensor:
    """Return copies of an image whose pixels are numbered from 1."""
    return torch.arange(1.0, side * side + 1).reshape(1, 1, side, side).repeat(n, 1, 1, 1)


def test_nothing_by_default() -> None:
    x = numbered(3)
    assert torch.equal(Augment()(x, generator()), x)


def test_a_flip_mirrors_left_and_right_half_of_the_time() -> None:
    x = numbered()
    out = Augment(flip=True)(x, generator())
    mirrored = [torch.equal(image, x[0].flip(-1)) for image in out]
    kept = [torch.equal(image, x[0]) for image in out]
    assert all(a != b for a, b in zip(mirrored, kept, strict=True))
    # 200 coins: mean 100, standard deviation 7.1.
    assert 70 < sum(mirrored) < 130


def test_a_crop_is_a_window_of_the_padded_image() -> None:
    # Padded by one pixel, a 2x2 image has nine 2x2 windows.
    x = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]).repeat(300, 1, 1, 1)
    windows = {
        (0.0, 0.0, 0.0, 1.0),
        (0.0, 0.0, 1.0, 2.0),
        (0.0, 0.0, 2.0, 0.0),
        (0.0, 1.0, 0.0, 3.0),
        (1.0, 2.0, 3.0, 4.0),
        (2.0, 0.0, 4.0, 0.0),
        (0.0, 3.0, 0.0, 0.0),
        (3.0, 4.0, 0.0, 0.0),
        (4.0, 0.0, 0.0, 0.0),
    }
    out = Augment(crop=1)(x, generator())
    assert {tuple(image.flatten().tolist()) for image in out} == windows


def test_a_crop_is_the_same_in_all_channels() -> None:
    x = numbered(20).repeat(1, 3, 1, 1)
    out = Augment(crop=2)(x, generator())
    assert torch.equal(out[:, 0], out[:, 1])
    assert torch.equal(out[:, 0], out[:, 2])


@pytest.mark.parametrize(("side", "most"), [(1, 1), (2, 4), (3, 9)])
def test_a_cutout_is_a_square_cut_at_the_border(side: int, most: int) -> None:
    out = Augment(cutout=side)(numbered(side=8), generator())
    holes = (out == 0).sum(dim=(1, 2, 3))
    assert int(holes.max()) == most
    assert int(holes.min()) >= 1
    rows = (out[:, 0] == 0).any(dim=2).sum(dim=1)
    columns = (out[:, 0] == 0).any(dim=1).sum(dim=1)
    assert torch.equal(rows * columns, holes)


def test_each_image_has_its_own_draw() -> None:
    out = Augment(crop=2, flip=True)(numbered(), generator())
    assert len({tuple(image.flatten().tolist()) for image in out}) > 20


def test_or_the_whole_batch_has_one() -> None:
    augment = Augment(crop=2, flip=True, per_batch=True)
    batches = [augment(numbered(5), generator(seed)) for seed in range(20)]
    for out in batches:
        assert all(torch.equal(image, out[0]) for image in out)
    assert len({tuple(out[0].flatten().tolist()) for out in batches}) > 5


def test_the_same_generator_gives_the_same_batch() -> None:
    augment = Augment(crop=1, flip=True, cutout=2)
    one, again = augment(numbered(), generator(3)), augment(numbered(), generator(3))
    assert torch.equal(one, again)
    assert not torch.equal(one, augment(numbered(), generator(4)))


def test_the_global_stream_is_not_read() -> None:
    before = torch.get_rng_state()
    Augment(crop=1, flip=True, cutout=2)(numbered(), generator())
    assert torch.equal(torch.get_rng_state(), before)


def test_the_batch_itself_is_not_changed() -> None:
    x = numbered(4)
    Augment(crop=1, flip=True, cutout=2)(x, generator())
    assert torch.equal(x, numbered(4))


def test_what_is_no_image_is_left_alone() -> None:
    x = torch.ones(3, 5)
    assert Augment(crop=1, flip=True, cutout=2)(x, generator()) is x


def test_an_image_of_one_pixel_and_a_batch_of_one() -> None:
    out = Augment(crop=1, flip=True, cutout=1)(torch.ones(1, 3, 1, 1), generator())
    assert out.shape == (1, 3, 1, 1)


def test_normalised_by_hand() -> None:
    # 51 / 255 = 0.2; (0.2 - 0.1) / 0.5 = 0.2. Floats are not divided by 255.
    mean, std = torch.tensor([0.1]), torch.tensor([0.5])
    byte = normalised(torch.tensor([51], dtype=torch.uint8), mean, std)
    assert float(byte) == pytest.approx(0.2)
    x = torch.tensor([0.6])
    assert float(normalised(x, mean, std)) == pytest.approx(1.0)
    assert float(x) == pytest.approx(0.6)


@pytest.mark.parametrize("field", ["crop", "cutout"])
def test_a_negative_size_is_refused(field: str) -> None:
    with pytest.raises(FedtailError, match=field):
        Augment.model_validate({field: -1})
