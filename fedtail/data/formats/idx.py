"""The idx format of MNIST: a magic number, big-endian sizes, then bytes."""

from __future__ import annotations

import gzip
import math
import struct
import zlib

import numpy as np

from fedtail.errors import FedtailError

UNSIGNED_BYTE = 0x08


def parse_idx(data: bytes, where: str) -> np.ndarray:
    """Return the array that an idx file of unsigned bytes holds, gzipped or not."""
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise FedtailError(f"{where} is a damaged gzip file") from error
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != UNSIGNED_BYTE:
        raise FedtailError(f"{where} is not an idx file of unsigned bytes")
    start = 4 + 4 * data[3]
    if len(data) < start:
        raise FedtailError(f"{where} is cut short")
    sizes = struct.unpack(f">{data[3]}I", data[4:start])
    if len(data) - start != math.prod(sizes):
        raise FedtailError(
            f"{where} holds {len(data) - start} bytes of data where sizes {sizes} need "
            f"{math.prod(sizes)}"
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(sizes)
