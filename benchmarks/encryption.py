"""What encrypted aggregation costs: bytes and processor seconds for two of the papers' networks.

A few clients encrypt an update of the whole network (the CNN that RedGrape trains on MNIST, and
ResNet-8 for CIFAR-10), the server adds the ciphertexts, one client decrypts the sum. Seconds are
processor time of one thread, the median over clients where each does the same.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TypeVar

import torch
from torch import Tensor

from benchmarks.results_file import save
from fedtail.engines.runtime import numerics
from fedtail.forms import SAMPLES, Form, like
from fedtail.models import ModelSpec, build
from fedtail.privacy.ckks import Adder, Keyholder, make_keys
from fedtail.privacy.layout import Opened, vector
from fedtail.protocol import Payload, grouped

T = TypeVar("T")
NETWORKS: dict[str, tuple[str, tuple[int, int, int]]] = {
    "RedGrape CNN": ("cnn", (1, 28, 28)),
    "ResNet-8": ("resnet8", (3, 32, 32)),
}
EACH = 500
"""Samples of the first client; each has one more than the one before."""


def updates(name: str, shape: tuple[int, int, int], clients: int) -> list[Payload]:
    """Return updates of a network: its initial weights, a little different for each client."""
    model = build(ModelSpec.model_validate(name), shape, 10).tensors()
    found = []
    for k in range(clients):
        draw = torch.Generator().manual_seed(k)
        moved = {
            n: t + 0.01 * torch.randn(t.shape, generator=draw) if t.is_floating_point() else t
            for n, t in model.items()
        }
        found.append(Payload(grouped("model", moved), {"samples": EACH + k}))
    return found


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """Return a result and the processor time it took."""
    began = time.process_time()
    result = work()
    return result, time.process_time() - began


def means(form: Form, numbers: Tensor, count: int) -> dict[str, Tensor]:
    """Return the means that a sum of vectors gives."""
    opened = Opened(form)
    opened.read(numbers, None, count)
    values = {name: opened.value((name, None)) for name in form.tensors}
    return {name: t for name, t in values.items() if t is not None}


def measure(payloads: Sequence[Payload], holder: Keyholder, adder: Adder) -> dict[str, float]:
    """Encrypt, add and decrypt once."""
    form = Form().group("model", like(payloads[0].group("model").items())).numbers(samples=SAMPLES)
    vectors = [vector(payload, form, parts=False) for payload in payloads]
    sealed = [timed(partial(holder.seal, numbers, len(vectors))) for numbers in vectors]
    total, adding = timed(lambda: adder.add([data for data, _ in sealed]))
    length = len(vectors[0])
    opened, opening = timed(lambda: holder.open_sum(total, length, len(vectors)))
    found, plain = (
        means(form, numbers, len(vectors)) for numbers in (opened, torch.stack(vectors).sum(dim=0))
    )
    apart = max(
        float((found[n] - t).norm() / t.norm())
        for n, t in plain.items()
        if t.is_floating_point() and float(t.norm()) > 0
    )
    return {
        "numbers": length,
        "plain_bytes": payloads[0].nbytes,
        "encrypted_bytes": len(sealed[0][0]),
        "bytes_ratio": round(len(sealed[0][0]) / payloads[0].nbytes, 2),
        "encrypt_seconds": round(median(seconds for _, seconds in sealed), 3),
        "add_seconds_per_client": round(adding / len(vectors), 3),
        "decrypt_seconds": round(opening, 3),
        "largest_relative_error": apart,
    }


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=3)
    chosen = parser.parse_args()
    with numerics(1), TemporaryDirectory() as folder:
        make_keys(Path(folder))
        holder, adder = Keyholder.open(Path(folder)), Adder.open(Path(folder))
        found = {
            label: measure(updates(name, shape, chosen.clients), holder, adder)
            for label, (name, shape) in NETWORKS.items()
        }
    save("encryption", {"threads": 1, "clients": chosen.clients, "networks": found})


if __name__ == "__main__":
    main()
