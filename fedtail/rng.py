"""Every random number comes from (seed, purpose, round, client), never from a shared stream.

Two draws with different purposes, rounds or clients are independent, and none depends on the
order in which clients happen to run. That is what makes serial, pooled, resumed and distributed
runs give the same bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive(seed: int, purpose: str, round: int = 0, client: int = 0) -> int:
    """Return a 63-bit seed for one purpose, round and client."""
    text = f"{seed}/{purpose}/{round}/{client}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1


def torch_generator(
    seed: int, purpose: str, round: int = 0, client: int = 0, device: torch.device | str = "cpu"
) -> torch.Generator:
    """Return a fresh torch generator for one purpose, round and client."""
    return torch.Generator(device=device).manual_seed(derive(seed, purpose, round, client))


def numpy_generator(
    seed: int, purpose: str, round: int = 0, client: int = 0
) -> np.random.Generator:
    """Return a fresh NumPy generator for one purpose, round and client."""
    return np.random.default_rng(derive(seed, purpose, round, client))


@contextmanager
def contained(seed: int, device: torch.device | str = "cpu") -> Iterator[None]:
    """Seed torch's global stream for the block, and put back what was there.

    Weight initialisation and `nn.Dropout` accept no generator: they read the global stream. Inside
    this block they read one of ours, and the caller's stream is as it was afterwards.
    """
    device = torch.device(device)
    if device.type == "cpu":
        before = torch.get_rng_state()
        torch.default_generator.manual_seed(seed)
        try:
            yield
        finally:
            torch.set_rng_state(before)
        return
    with torch.random.fork_rng(devices=[device], device_type=device.type):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        elif device.type == "mps":
            torch.mps.manual_seed(seed)
        yield
