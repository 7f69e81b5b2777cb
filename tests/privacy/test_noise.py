"""Noise that cannot be subtracted: its distribution, exactness, and the attack on the old one."""

from __future__ import annotations

import math
import os
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch

from fedtail.privacy.noise import (
    discrete_gaussian,
    exactly_below,
    grid_step,
    hidden,
    noise_in_steps,
    on_grid,
    seeded_bytes,
)


@pytest.mark.parametrize("sigma", [1, 3, 10])
def test_whole_numbers_come_as_often_as_they_should(sigma: int) -> None:
    # χ² over all numbers that are expected five times or more; the mean of χ² is the number of
    # degrees of freedom f, its variance 2f.
    n = 200_000
    drawn = discrete_gaussian(sigma, n, seeded_bytes(0, "test", sigma))
    k = np.arange(-12 * sigma, 12 * sigma + 1)
    p = np.exp(-(k**2) / (2 * sigma**2))
    expected = n * p / p.sum()
    seen = np.array([(drawn == number).sum() for number in k])
    often = expected >= 5
    chi = float(((seen - expected)[often] ** 2 / expected[often]).sum())
    freedom = int(often.sum()) - 1
    assert abs(chi - freedom) < 4 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("sigma", [1000, 2**20 + 17, 2**41])
def test_large_noise_is_a_gaussian(sigma: int) -> None:
    # Kolmogorov and Smirnov: √n times the largest distance is below 1.95 in 999 of 1000 samples.
    n = 20_000
    drawn = np.sort(discrete_gaussian(sigma, n, seeded_bytes(1, "test", 1))) / sigma
    phi = torch.special.ndtr(torch.from_numpy(drawn)).numpy()
    assert math.sqrt(n) * np.abs(phi - (np.arange(n) + 0.5) / n).max() < 1.95


def only(word: int, size: int) -> bytes:
    """Give one word, whenever bytes are asked for."""
    return word.to_bytes(size)


def test_a_probability_that_rounding_cannot_tell_from_a_draw_is_computed_further() -> None:
    # e^-1 = 0.367879441171442321595523770161460867445811131…: the draw has its first 64 bits, and
    # only what comes after decides.
    digits = Fraction(367879441171442321595523770161460867445811131, 10**45)
    word = math.floor(digits * 2**64)
    after = math.floor((digits * 2**64 - word) * 2**64)
    for further, expected in ((after - 2**20, True), (after + 2**20, False)):
        assert exactly_below(word, Fraction(1), partial(only, further)) is expected
    assert exactly_below(word - 5, Fraction(1), os.urandom)
    assert not exactly_below(word + 5, Fraction(1), os.urandom)


def test_certain_and_impossible_draws_are_made_too() -> None:
    assert exactly_below(2**64 - 1, Fraction(0), os.urandom)  # e^0 = 1 is above every draw
    assert not exactly_below(0, Fraction(10**6), os.urandom)


def test_the_grid_holds_every_step_in_single_precision() -> None:
    for clip in (1e-6, 0.37, 1.0, 3.0, 1e4):
        step = grid_step(clip)
        assert 2**20 <= clip / step < 2**21
        steps = on_grid(torch.tensor([clip * 5, -clip * 7]), clip, step)
        values = steps.double() * step
        assert torch.equal(values.float().double(), values)
        assert clip * (1 - 1e-5) < float(values.norm()) <= clip


def test_short_vectors_are_cut_off_towards_zero() -> None:
    assert on_grid(torch.tensor([0.26, -0.26]), 1.0, 0.25).tolist() == [1, -1]
    assert on_grid(torch.tensor([0.24, -0.24]), 1.0, 0.25).tolist() == [0, 0]


def test_noise_is_rounded_up_to_steps() -> None:
    assert noise_in_steps(1.01, 0.25) == 5
    assert noise_in_steps(1e-9, 0.25) == 1  # never none


def test_a_hidden_sum_is_on_the_grid_and_centred() -> None:
    n = 50_000
    total = torch.full((n,), 3.0, dtype=torch.float64)
    found = hidden(total, 0.5, 1.0, seeded_bytes(2, "test", 1))
    steps = found / grid_step(1.0)
    assert torch.equal(steps, steps.round())
    assert abs(float(found.mean()) - 3) < 4 * 0.5 / math.sqrt(n)


def test_seeded_bytes_repeat_and_the_systems_do_not() -> None:
    assert seeded_bytes(3, "a", 1)(16) == seeded_bytes(3, "a", 1)(16) != seeded_bytes(3, "a", 2)(16)
    one, other = (discrete_gaussian(2**20, 8, os.urandom).tolist() for _ in range(2))
    assert one != other


def first_words(seeds: np.ndarray) -> np.ndarray:
    """Return the first 32 bits that torch's CPU generator gives for each seed (MT19937)."""
    state = seeds.astype(np.uint32)
    early = [state]
    with np.errstate(over="ignore"):
        for i in range(1, 398):
            state = np.uint32(1812433253) * (state ^ state >> np.uint32(30)) + np.uint32(i)
            early.append(state) if i == 1 else None
    mixed = early[0] & np.uint32(0x80000000) | early[1] & np.uint32(0x7FFFFFFF)
    odd = np.where(mixed & 1, np.uint32(0x9908B0DF), np.uint32(0))
    word: np.ndarray = state ^ mixed >> np.uint32(1) ^ odd
    word ^= word >> np.uint32(11)
    word ^= word << np.uint32(7) & np.uint32(0x9D2C5680)
    word ^= word << np.uint32(15) & np.uint32(0xEFC60000)
    word ^= word >> np.uint32(18)
    return word


def found_seed(noise: torch.Tensor, seeds: range) -> int | None:
    """Look for the seed behind Gaussian noise of a torch generator.

    torch makes sixteen normal numbers at a time, the first and the ninth as r cos θ and r sin θ,
    with r = √(−2 ln(1 − u)) and u the first 24 bits that were drawn.
    """
    u = 1 - math.exp(-(float(noise[0]) ** 2 + float(noise[8]) ** 2) / 2)
    words = first_words(np.arange(seeds.start, seeds.stop, dtype=np.int64))
    near = np.abs((words & np.uint32(0xFFFFFF)) / 2**24 - u) < 1e-5
    for seed in (seeds.start + int(i) for i in np.flatnonzero(near)):
        again = torch.randn(len(noise), generator=torch.Generator().manual_seed(seed))
        if torch.allclose(again, noise, atol=1e-5):
            return seed
    return None


def test_the_search_that_finds_noise_of_a_torch_generator_finds_nothing_here() -> None:
    # Of a seed torch keeps 32 bits; a part of their space stands for all of it.
    window, secret = range(2**31, 2**31 + 2**17), 2**40 + 2**31 + 77_777
    old = torch.randn(32, generator=torch.Generator().manual_seed(secret))
    assert found_seed(old, window) == secret % 2**32
    drawn = discrete_gaussian(2**20, 32, os.urandom)
    new = torch.from_numpy(drawn).float() / 2**20
    assert found_seed(new, window) is None


@pytest.mark.slow
def test_the_search_goes_over_the_whole_space_in_minutes_a_core() -> None:
    # 2^25 seeds, 1/128 of the space, in pieces.
    drawn = discrete_gaussian(2**20, 32, os.urandom)
    new = torch.from_numpy(drawn).float() / 2**20
    for start in range(0, 2**25, 2**20):
        assert found_seed(new, range(start, start + 2**20)) is None
