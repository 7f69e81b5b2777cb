"""Secrets in shares, of which any t give the secret and t − 1 tell nothing.

Shamir, "How to Share a Secret", Communications of the ACM 1979: the secret is q(0) of a polynomial
of degree t − 1 with random coefficients, and place x holds q(x), all modulo a prime.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

PRIME = 2**256 + 297
"""The least prime above all secrets of 32 bytes."""
SECRET_BYTES, SHARE_BYTES = 32, 33


def shared_out(secret: bytes, threshold: int, places: Sequence[int]) -> list[bytes]:
    """Return one share a place; any `threshold` of them give the secret.

    Parameters
    ----------
    secret
        32 bytes.
    threshold
        t.
    places
        Distinct numbers from 1.
    """
    rest = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    return [value(x, [int.from_bytes(secret), *rest]).to_bytes(SHARE_BYTES) for x in places]


def value(x: int, coefficients: Sequence[int]) -> int:
    """Return q(x), q(0) being the first coefficient."""
    found = 0
    for coefficient in reversed(coefficients):
        found = (found * x + coefficient) % PRIME
    return found


def join(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret of at least t shares, each under its place: Lagrange's q(0)."""
    found = 0
    for x, share in shares.items():
        above, below = 1, 1
        for other in shares:
            if other != x:
                above = above * other % PRIME
                below = below * (other - x) % PRIME
        found += int.from_bytes(share) * above * pow(below, -1, PRIME)
    found %= PRIME
    # Shares that are not of one secret give anything, perhaps more than fits.
    return (found % (1 << 8 * SECRET_BYTES)).to_bytes(SECRET_BYTES)
