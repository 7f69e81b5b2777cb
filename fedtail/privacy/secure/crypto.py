"""The primitives, all of the package `cryptography`: keys, derivation, masks, boxes, signatures."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedtail.errors import FedtailError

KEY_BYTES, SIGNATURE_BYTES, TAG_BYTES = 32, 64, 16
MASK_PIECE = 1 << 16
"""How many bytes of a mask are made at a time: as many as a processor's cache holds."""

Numbers = np.ndarray[Any, np.dtype[Any]]
"""uint32 or uint64, which add up modulo 2^w."""


def sha256(*parts: bytes) -> bytes:
    """Return SHA-256 of some parts, each with its length before it."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8) + part)
    return whole.digest()


def public_key(private: bytes) -> bytes:
    """Return the public half of an X25519 key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def signing_public(private: bytes) -> bytes:
    """Return the public half of an Ed25519 key."""
    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agreed(private: bytes, other: bytes, context: bytes, purpose: str) -> bytes:
    """Return the 32 bytes that the holders of two X25519 keys have in common, and nobody else."""
    try:
        mine = X25519PrivateKey.from_private_bytes(private)
        common = mine.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:
        raise FedtailError("a public key is none of X25519") from None
    return derived(common, context, purpose)


def derived(secret: bytes, context: bytes, purpose: str) -> bytes:
    """Return 32 bytes that a secret gives in one context for one purpose."""
    return HKDF(SHA256(), KEY_BYTES, salt=context, info=purpose.encode()).derive(secret)


def add_mask(total: Numbers, key: bytes, sign: int = 1) -> None:
    """Add the mask of a 32-byte key to whole numbers, or subtract it, modulo 2^w and in place."""
    words = MASK_PIECE // total.itemsize
    for start, piece in zip(range(0, len(total), words), _stream(key, total.nbytes), strict=True):
        mask = np.frombuffer(piece, total.dtype.newbyteorder("<"))
        if sign > 0:
            total[start : start + words] += mask
        else:
            total[start : start + words] -= mask


def _stream(key: bytes, size: int) -> Iterator[bytes]:
    cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    zeros = bytes(MASK_PIECE)
    for start in range(0, size, MASK_PIECE):
        yield cipher.update(zeros[: size - start])


def locked_box(key: bytes, content: bytes, context: bytes) -> bytes:
    """Return a content that only the holder of the key can read; a key locks one box."""
    return AESGCM(key).encrypt(bytes(12), content, context)


def unlocked(key: bytes, box: bytes, context: bytes) -> bytes | None:
    """Return what is in a box; nothing if it is another's, or was changed."""
    try:
        return AESGCM(key).decrypt(bytes(12), box, context)
    except InvalidTag:
        return None


def signature(private: bytes, content: bytes) -> bytes:
    """Return an Ed25519 signature."""
    return Ed25519PrivateKey.from_private_bytes(private).sign(content)


def is_signed(public: bytes, signed: bytes, content: bytes) -> bool:
    """Whether a signature is of the holder of a key."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signed, content)
    except (InvalidSignature, ValueError):
        return False
    return True
