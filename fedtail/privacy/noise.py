"""Noise that nobody can subtract: whole numbers, from the system's randomness.

Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020. A Gaussian
in floating point has holes in its last bits through which what it hides can be seen (Mironov, "On
significance of the least significant bits for differential privacy", CCS 2012). So what is hidden
is a whole number of steps of a grid, and the noise is one too: k with probability
∝ exp(−k² / 2σ²). Its Rényi divergences are at most those of the continuous Gaussian of the same σ,
and from some tens of steps on the two cannot be told apart in what they promise.

The draws are exact: a proposal is kept or not by comparing 64 random bits with a probability, and
where rounding could decide otherwise, more bits are drawn and the probability is computed with as
many digits as it takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from fedtail.rng import derive

RandomBytes = Callable[[int], bytes]
"""Gives as many random bytes as it is asked for; ``os.urandom`` is one."""

BITS = 20
"""The largest norm of an update is 2^20 to 2^21 steps of the grid: float32 holds every one."""
MOST_STEPS = 2**45
"""The largest σ that is drawn exactly: its square fits into what proposals are compared with."""
UNSURE = 2.0**-44
"""More than rounding can move a probability that is computed in float64 (about 2^-50)."""


def seeded_bytes(seed: int, purpose: str, round: int, client: int = 0) -> RandomBytes:
    """Return bytes that repeat: for simulations, which protect nobody."""
    stream = np.random.Generator(np.random.Philox(derive(seed, purpose, round, client)))
    return stream.bytes


def grid_step(clip: float) -> float:
    """Return the step of the grid on which updates of norm S lie: a power of two."""
    return 2.0 ** (math.frexp(clip)[1] - 1 - BITS)


def on_grid(flat: Tensor, clip: float, step: float) -> Tensor:
    """Return a vector of norm S at most, in whole steps; longer ones are scaled down.

    Numbers are cut off towards zero, so that the norm never grows, and the norm is checked in whole
    numbers: no rounding makes an update longer than was promised.
    """
    x = flat.detach().cpu().double()
    most = math.floor(Fraction(clip) ** 2 / Fraction(step) ** 2)
    factor = min(1.0, clip / max(float(x.norm()), 1e-300)) / step
    while True:
        steps = (x * factor).trunc().to(torch.int64)
        if int(steps.square().sum()) <= most:
            return steps
        factor *= 1 - 2.0**-BITS


def discrete_gaussian(sigma: int, size: int, source: RandomBytes) -> np.ndarray:
    """Return whole numbers k with probability ∝ exp(−k² / 2σ²).

    Proposals are discrete Laplace numbers of a scale t, a power of two above σ: k with probability
    ∝ exp(−|k| / t), each kept with probability exp(−(|k| − σ²/t)² / 2σ²).

    Parameters
    ----------
    sigma
        In steps of the grid, from 1 to `MOST_STEPS`.
    size, source
        How many, and where random bytes come from.
    """
    found = [np.zeros(0, np.int64)]
    while (lacking := size - sum(map(len, found))) > 0:
        found.append(_proposals_kept(sigma, 2 * lacking + 16, source))
    return np.concatenate(found)[:size]


def noise_in_steps(sigma: float, step: float) -> int:
    """Return σ in whole steps of the grid, rounded up: more noise, never less."""
    return max(1, math.ceil(sigma / step))


def hidden(total: Tensor, sigma: float, clip: float, source: RandomBytes) -> Tensor:
    """Return a sum of updates that lie on the grid of S, with discrete Gaussian noise."""
    step = grid_step(clip)
    noise = discrete_gaussian(noise_in_steps(sigma, step), total.numel(), source)
    steps = (total.double() / step).round() + torch.from_numpy(noise).reshape(total.shape)
    return steps * step


def _proposals_kept(sigma: int, size: int, source: RandomBytes) -> np.ndarray:
    bits = sigma.bit_length()
    scale = 1 << bits
    u = (_words(size, source) >> np.uint64(64 - bits)).astype(np.int64)
    u = u[_happens(u / scale, source, lambda i: Fraction(int(u[i]), scale))]
    k = u + scale * _geometric(len(u), source)
    negative = _words(len(k), source) >> np.uint64(63) == 1
    once = ~(negative & (k == 0))  # zero would be proposed twice
    k, negative = k[once], negative[once]
    middle = Fraction(sigma**2, scale)
    gamma = (k - float(middle)) ** 2 / (2.0 * sigma**2)
    kept = _happens(gamma, source, lambda i: (int(k[i]) - middle) ** 2 / (2 * sigma**2))
    found: np.ndarray = np.where(negative, -k, k)[kept]
    return found


def _geometric(size: int, source: RandomBytes) -> np.ndarray:
    """Return how many events of probability 1/e happen before the first that does not."""
    count = np.zeros(size, np.int64)
    going = np.arange(size)
    while len(going):
        going = going[_happens(np.ones(len(going)), source, lambda _: Fraction(1))]
        count[going] += 1
    return count


def _happens(
    gamma: np.ndarray, source: RandomBytes, exact: Callable[[int], Fraction]
) -> np.ndarray:
    """Let events of probability exp(−γ) happen or not, exactly.

    Parameters
    ----------
    gamma
        Of each event, with an error of some 2^-50 of max(γ, 1).
    source
        Where random bytes come from.
    exact
        γ of one event as it is.
    """
    words = _words(len(gamma), source)
    drawn, p = words * 2.0**-64, np.exp(-gamma)
    below: np.ndarray = drawn < p
    for i in np.flatnonzero(np.abs(drawn - p) < UNSURE):
        below[i] = exactly_below(int(words[i]), exact(int(i)), source)
    return below


def exactly_below(word: int, gamma: Fraction, source: RandomBytes) -> bool:
    """Whether 0.word… < exp(−γ), with further random bits after the 64 of the word."""
    bits = 64
    while True:
        with localcontext() as context:
            context.prec = bits  # decimal digits: three times as many as the bits need
            p = (-Decimal(gamma.numerator) / Decimal(gamma.denominator)).exp()
            scaled = p * Decimal(2) ** bits
            if word + 1 <= scaled - 1:
                return True
            if word >= scaled + 1:
                return False
        word = word << 64 | int.from_bytes(source(8))
        bits += 64


def _words(size: int, source: RandomBytes) -> np.ndarray:
    return np.frombuffer(source(8 * size), np.uint64)
