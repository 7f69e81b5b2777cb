"""Seeds: pinned, independent, and no trace in anybody's global stream."""

from __future__ import annotations

import pytest
import torch
from tiny import global_streams
from torch import nn

from fedtail.rng import contained, derive, numpy_generator, torch_generator


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ((0, "cohort"), 326653465966845487),
        ((0, "client/batches/0", 1, 0), 4600298612598106810),
        ((0, "client/batches/0", 1, 1), 9217729501107833547),
        ((0, "client/batches/0", 2, 0), 73358138129581199),
        ((1, "client/batches/0", 1, 0), 6063580377100572911),
        ((123, "modèle", 7, 99999), 6214726258991360513),
    ],
)
def test_derived_seeds_never_change(key: tuple[int, str, int, int], value: int) -> None:
    # blake2b of "seed/purpose/round/client", 8 bytes, big endian, the last bit cut off. A change
    # would give every published run other numbers.
    assert derive(*key) == value


def test_the_streams_of_a_seed_never_change() -> None:
    assert torch_generator(0, "x", 1, 2).initial_seed() == derive(0, "x", 1, 2)
    assert torch.randperm(5, generator=torch_generator(0, "x", 1, 2)).tolist() == [1, 3, 4, 0, 2]
    assert numpy_generator(0, "x", 1, 2).integers(0, 100, 4).tolist() == [45, 80, 31, 23]


def test_every_part_of_the_key_matters() -> None:
    keys = [
        (seed, purpose, round, client)
        for seed in range(3)
        for purpose in ("batches", "augment", "batches/1")
        for round in range(20)
        for client in range(20)
    ]
    assert len({derive(*key) for key in keys}) == len(keys)


def test_seeds_fit_in_63_bits_and_use_them() -> None:
    seeds = [derive(0, "range", client=k) for k in range(2000)]
    assert min(seeds) >= 0
    assert 2**62 < max(seeds) < 2**63


def test_streams_of_neighbours_are_uncorrelated() -> None:
    # 4000 normal numbers each: a correlation has standard deviation 1 / sqrt(4000) = 0.016.
    rows = [
        torch.randn(4000, generator=torch_generator(0, purpose, round, client))
        for purpose, round, client in [("a", 1, 1), ("a", 1, 2), ("a", 2, 1), ("b", 1, 1)]
    ]
    off_diagonal = torch.corrcoef(torch.stack(rows)) - torch.eye(4)
    assert float(off_diagonal.abs().max()) < 0.08


def test_contained_puts_the_global_stream_back() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with contained(7):
        torch.rand(100)
    assert torch.equal(torch.rand(3), expected)


def test_contained_puts_the_global_stream_back_after_an_error() -> None:
    before = torch.get_rng_state()
    with pytest.raises(KeyError), contained(7):
        torch.rand(100)
        raise KeyError
    assert torch.equal(torch.get_rng_state(), before)


def test_contained_makes_dropout_and_initial_weights_repeat() -> None:
    # Prepare
    def draw(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        with contained(seed):
            return nn.Linear(4, 4).weight.detach(), nn.functional.dropout(torch.ones(64))

    # Execute
    one, again, other = draw(1), draw(1), draw(2)

    # Assert
    assert torch.equal(one[0], again[0])
    assert torch.equal(one[1], again[1])
    assert not torch.equal(one[0], other[0])
    assert not torch.equal(one[1], other[1])


def test_generators_do_not_touch_the_global_streams() -> None:
    before = global_streams()
    torch.rand(3, generator=torch_generator(0, "x"))
    numpy_generator(0, "x").random(3)
    assert global_streams() == before
