"""Encrypted sums: CKKS with TenSEAL.

Cheon, Kim, Kim, Song, "Homomorphic Encryption for Arithmetic of Approximate Numbers", ASIACRYPT
2017. The clients share one secret key; whoever adds ciphertexts has the parameters only. Nothing is
multiplied, so one prime of 60 bits carries the numbers: with a scale of 2^36 it leaves 23 bits
before the point, sums up to `LARGEST_SUM`. A ciphertext is then 8 times as large as float32; a
chain of primes for multiplications that nobody does would make it 20 times.
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedtail.errors import FedtailError, missing_extra
from fedtail.files import make_folder

SLOTS = 4096
DEGREE, MODULI, SCALE = 2 * SLOTS, (60, 60), 2.0**36
LARGEST_SUM = 2.0**22
"""The largest absolute value of a sum, with a factor of two to spare."""
GRID = 2.0**-20
"""What a decrypted sum is rounded to before it leaves the client.

Rounding costs no accuracy (the noise of encryption is as large), and hides that noise: from a
ciphertext and its exact decryption, noise included, the key could be computed (Li, Micciancio, "On
the Security of Homomorphic Encryption on Approximate Numbers", EUROCRYPT 2021).
"""
CHECK = 1.0  # stands in the last place of each block, so that K of them decrypt to K
KEY_BYTES, DIGEST_BYTES = 8, 16
SECRET, PUBLIC = "secret.key", "public.key"


class Damaged(FedtailError):
    """A ciphertext that cannot be used."""


def tenseal() -> Any:
    """Return the module, or say which extra it is in."""
    try:
        import tenseal as module
    except ImportError:
        raise missing_extra("encryption", "TenSEAL", "privacy") from None
    return module


def new_keys() -> dict[str, bytes]:
    """Return a new secret key for the clients, and what the server gets."""
    ts = tenseal()
    context = ts.context(ts.SCHEME_TYPE.CKKS, DEGREE, -1, list(MODULI))
    context.global_scale = SCALE
    mark = secrets.token_bytes(KEY_BYTES)
    rest = {"save_galois_keys": False, "save_relin_keys": False}
    return {
        name: mark + context.serialize(save_public_key=held, save_secret_key=held, **rest)
        for name, held in ((SECRET, True), (PUBLIC, False))
    }


def make_keys(folder: Path) -> None:
    """Write new keys to a folder."""
    made = new_keys()
    make_folder(folder)
    for name in made:
        if (folder / name).exists():
            raise FedtailError(f"'{folder}' already holds keys; choose another folder")
    for name, data in made.items():
        # Nobody else may read it, from its first byte on.
        with os.fdopen(os.open(folder / name, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as stream:
            stream.write(data)


def _read(path: Path) -> tuple[bytes, Any]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FedtailError(f"cannot read the key '{path}': {error.strerror}") from None
    return _opened(data, str(path))


def _opened(data: bytes, where: str) -> tuple[bytes, Any]:
    try:
        return data[:KEY_BYTES], tenseal().context_from(data[KEY_BYTES:])
    except (ValueError, RuntimeError):
        raise FedtailError(f"'{where}' is not a key that fedtail made") from None


@dataclass(frozen=True)
class Adder:
    """What the server has: it adds ciphertexts, and cannot read them."""

    name: bytes
    context: Any

    @classmethod
    def open(cls, folder: Path) -> Adder:
        """Read the server's half of the keys."""
        return cls(*_read(folder / PUBLIC))

    @classmethod
    def of(cls, data: bytes) -> Adder:
        """Return what a key's bytes give."""
        return cls(*_opened(data, "the public key"))

    def add(self, sealed: Iterable[Tensor]) -> Tensor:
        """Return the ciphertext of a sum; only one addend at a time is in memory as objects."""
        ts = tenseal()
        total: list[Any] = []
        for data in sealed:
            vectors = [ts.ckks_vector_from(self.context, b) for b in _blocks(data, self.name)]
            if not total:
                total = vectors
                continue
            for vector, more in zip(total, vectors, strict=True):
                vector.add_(more)
        return _joined([vector.serialize() for vector in total], self.name)

    def check(self, sealed: Tensor, length: int) -> None:
        """Refuse a ciphertext that is damaged, of another key or of another length."""
        blocks = sum(1 for _ in _blocks(sealed, self.name))
        if blocks != count_blocks(length):
            raise Damaged(f"a ciphertext has {blocks} blocks instead of {count_blocks(length)}")


@dataclass(frozen=True)
class Keyholder:
    """What a client has: it encrypts its numbers, and decrypts sums."""

    name: bytes
    context: Any

    @classmethod
    def open(cls, folder: Path) -> Keyholder:
        """Read the clients' half of the keys."""
        return cls(*_read(folder / SECRET))

    @classmethod
    def of(cls, data: bytes) -> Keyholder:
        """Return what a key's bytes give."""
        return cls(*_opened(data, "the secret key"))

    def seal(self, numbers: Tensor, parties: int) -> Tensor:
        """Return the ciphertext of a vector, one of `parties` that are added up."""
        largest = float(numbers.abs().max()) if len(numbers) else 0.0
        if largest * parties > LARGEST_SUM:
            raise FedtailError(
                f"sent a number too large to be encrypted: {largest:.3g} (samples times weight) is "
                f"above {LARGEST_SUM / parties:.3g}, the most for {parties} clients"
            )
        ts, blocks = tenseal(), []
        for block in torch.split(numbers, SLOTS - 1):
            filled = np.zeros(SLOTS)
            filled[: len(block)], filled[-1] = block.numpy(), CHECK
            blocks.append(ts.ckks_vector(self.context, filled.tolist()).serialize())
        return _joined(blocks, self.name)

    def open_sum(self, sealed: Tensor, length: int, count: int) -> Tensor:
        """Return the sum of `count` vectors, rounded to `GRID`."""
        if not self.context.has_secret_key():
            raise FedtailError("this key is the server's: it cannot decrypt")
        ts, rows = tenseal(), []
        for block in _blocks(sealed, self.name):
            row = np.array(ts.ckks_vector_from(self.context, block).decrypt())
            if not abs(row[-1] - count * CHECK) < 0.01:
                raise Damaged("a sum does not decrypt: it was encrypted under another key")
            rows.append(row[:-1])
        numbers = torch.from_numpy(np.concatenate([np.empty(0), *rows]))
        if len(numbers) < length:
            raise Damaged("a sum is shorter than it should be")
        return (numbers[:length] / GRID).round() * GRID


def count_blocks(length: int) -> int:
    """Return how many ciphertexts a vector is cut into."""
    return math.ceil(length / (SLOTS - 1))


def _joined(blocks: list[bytes], name: bytes) -> Tensor:
    """Return blocks as one tensor of bytes: key, sizes, blocks, and a digest of it all."""
    sizes = b"".join(len(block).to_bytes(4, "little") for block in blocks)
    head = name + len(blocks).to_bytes(4, "little") + sizes
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for piece in (head, *blocks):
        digest.update(piece)
    data = b"".join([head, *blocks, digest.digest()])
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _blocks(sealed: Tensor, name: bytes) -> Iterator[bytes]:
    data = sealed.numpy().tobytes()
    body, digest = data[:-DIGEST_BYTES], data[-DIGEST_BYTES:]
    if hashlib.blake2b(body, digest_size=DIGEST_BYTES).digest() != digest:
        raise Damaged("a ciphertext is damaged or cut short")
    if body[:KEY_BYTES] != name:
        raise Damaged("a ciphertext was made with another key: all clients need the same key file")
    count = int.from_bytes(body[KEY_BYTES : KEY_BYTES + 4], "little")
    at = KEY_BYTES + 4 + 4 * count
    for number in range(count):
        start = KEY_BYTES + 4 + 4 * number
        size = int.from_bytes(body[start : start + 4], "little")
        yield body[at : at + size]
        at += size
